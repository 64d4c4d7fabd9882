// chorus export: a program file from a checkpoint.
#include <cstdio>

#include "arguments.h"
#include "base/memory_map.h"
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

// The context asked for, 0 without one.
Result<int32_t> read_flags(const ExportFlags& flags) {
  if (flags.model.empty()) {
    return invalid_argument("MODEL", "expected a .chorus program or a .gguf file");
  }
  if (flags.output.empty()) return invalid_argument("-o", "expected the file to write");
  if (flags.context.empty()) return 0;
  CHORUS_ASSIGN_OR_RETURN(const int64_t context,
                          parse_count("--context", flags.context, 1, 1 << 30));
  return static_cast<int32_t>(context);
}

// A program file is copied as it is, once its weights are known to be whole.
Status check_source_program(const Program& program, int32_t context) {
  if (context != 0 && context != program.context()) {
    return unimplemented("--context",
                         "another context for a .chorus program: not offered by this "
                         "version; export the checkpoint");
  }
  return program.verify_weights();
}

int export_model(ExportFlags& flags) {
  const Status parsed = flags.common.parse();
  Console console(flags.common);
  if (!parsed.ok()) return console.error(parsed, kUsage);
  const auto context = read_flags(flags);
  if (!context.ok()) return console.error(context.status(), kUsage);
  const SteadyClock clock;
  const int64_t start_ns = clock.now_ns();
  const auto source = open_program(flags.model, *context, console);
  if (!source.ok()) return source.exit_code;
  if (!is_gguf_file(flags.model)) {
    const Status status = check_source_program(*source.value, *context);
    if (!status.ok()) {
      return console.error(status, status.field() == "--context" ? kUsage : kBadModel);
    }
  }
  const auto image = source.value->image();
  const Status written = write_file_atomically(flags.output, {&image, 1});
  if (!written.ok()) return console.error(written, kFailed);
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
  app.add_option("MODEL", flags->model, "a .gguf file, or a .chorus program to copy");
  app.add_option("-o,--output", flags->output, "the .chorus file to write")->type_name("FILE");
  app.add_option("--context", flags->context, "longest session in tokens (default: the model's)")
      ->type_name("N");
  flags->common.declare(app);
  app.callback([&line, flags] { line.action = [flags] { return export_model(*flags); }; });
}

}  // namespace chorus::cli
