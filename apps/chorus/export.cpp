// chorus export: a program file from a checkpoint.
#include "exporter/export.h"

#include <cstdio>
#include <filesystem>

#include "arguments.h"
#include "models.h"
#include "verbs.h"

namespace chorus::cli {

namespace {

struct ExportFlags {
  std::string model;
  std::string output;
  std::string context;
  CommonFlags common;
};

Result<ExportOptions> read_flags(const ExportFlags& flags, Console& console) {
  ExportOptions options;
  if (flags.model.empty()) return invalid_argument("MODEL", "expected a .gguf file");
  if (flags.output.empty()) return invalid_argument("-o", "expected the file to write");
  if (!flags.context.empty()) {
    CHORUS_ASSIGN_OR_RETURN(const int64_t context,
                            parse_count("--context", flags.context, 1, 1 << 30));
    options.context = static_cast<int32_t>(context);
  }
  options.progress = [&console](uint64_t done, uint64_t total) {
    char text[32];
    std::snprintf(text, sizeof text, "exporting: %3.0f %%",
                  100 * static_cast<double>(done) / static_cast<double>(total));
    console.progress(text);
  };
  return options;
}

// A wrong flag is the command line's fault; a checkpoint that cannot be exported is the model's.
ExitCode exit_code_of(const Status& status, const ExportFlags& flags) {
  const bool is_output = status.field().starts_with(flags.output);
  if (status.field() == "context") return kUsage;
  return is_output ? kFailed : kBadModel;
}

int export_model(ExportFlags& flags) {
  const Status parsed = flags.common.parse();
  Console console(flags.common);
  if (!parsed.ok()) return console.error(parsed, kUsage);
  const auto options = read_flags(flags, console);
  if (!options.ok()) return console.error(options.status(), kUsage);
  const SteadyClock clock;
  const int64_t start_ns = clock.now_ns();
  const Status status = export_to_file(flags.model, flags.output, *options);
  if (!status.ok()) return console.error(status, exit_code_of(status, flags));
  const auto program = Program::load(flags.output);
  if (!program.ok()) return console.error(program.status(), kFailed);
  json::Value value = model_json(*program, flags.output);
  value.set("bytes", static_cast<uint64_t>(program->image().size()));
  value.set("seconds", static_cast<double>(clock.now_ns() - start_ns) / 1e9);
  if (console.json()) {
    json::Value line;
    line.set("type", "export");
    for (const auto& [name, member] : value.as_object()) line.set(name, member);
    console.line(line);
  } else {
    char text[64];
    std::snprintf(text, sizeof text, "%.1f MB in %.2f s\n",
                  static_cast<double>(program->image().size()) / 1e6,
                  value.find("seconds")->to_number("").value());
    console.text(flags.output + ": " + text + description_text(*program));
  }
  return kDone;
}

}  // namespace

void add_export(CommandLine& line) {
  CLI::App& app = *line.app.add_subcommand("export", "write a program file from a checkpoint");
  app.allow_extras();
  auto flags = std::make_shared<ExportFlags>();
  app.add_option("MODEL", flags->model, "a .gguf file");
  app.add_option("-o,--output", flags->output, "the .chorus file to write")->type_name("FILE");
  app.add_option("--context", flags->context, "longest session in tokens (default: the model's)")
      ->type_name("N");
  flags->common.declare(app);
  app.callback([&line, flags] { line.action = [flags] { return export_model(*flags); }; });
}

}  // namespace chorus::cli
