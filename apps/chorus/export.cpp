// chorus export: a program file from a checkpoint.
#include <cstdio>

#include "arguments.h"
#include "models.h"
#include "verbs.h"

namespace chorus::cli {

namespace {

// A program file is copied as it is, once its weights are known to be whole.
Status check_source_program(const Program& program, int32_t context) {
  if (context != 0 && context != program.context()) {
    return unimplemented("--context",
                         "another context for a .chorus program: not offered by this "
                         "version; export the checkpoint");
  }
  return program.verify_weights();
}

class ExportVerb final : public Verb {
 public:
  ExportVerb() : Verb("export", "write a program file from a checkpoint") {}
  void declare(CommandLine& line) override;
  Status parse() override;
  int run(Console& console, Interrupt& interrupt) override;

 private:
  void print(const Program& program, double seconds, Console& console) const;

  std::string model_, output_, context_text_;
  int32_t context_ = 0;  // 0: the model's
};

void ExportVerb::declare(CommandLine& line) {
  line.argument("MODEL", model_, "a .gguf file, or a .chorus program to copy");
  line.group("Output");
  line.flag("-o,--output", output_, "FILE", "the .chorus file to write");
  line.flag("--context", context_text_, "N", "longest session in tokens (default: the model's)");
}

Status ExportVerb::parse() {
  if (output_.empty()) return invalid_argument("-o", "expected the file to write");
  CHORUS_RETURN_IF_ERROR(check_not_same("-o", output_, model_));
  if (context_text_.empty()) return Status();
  CHORUS_ASSIGN_OR_RETURN(const int64_t context,
                          parse_count("--context", context_text_, 1, 1 << 30));
  context_ = static_cast<int32_t>(context);
  return Status();
}

void ExportVerb::print(const Program& program, double seconds, Console& console) const {
  if (console.json()) {
    json::Value line;
    line.set("type", "export");
    const json::Value model = model_json(program, output_);
    for (const auto& [name, member] : model.as_object()) line.set(name, member);
    line.set("bytes", static_cast<uint64_t>(program.image().size()));
    line.set("seconds", seconds);
    console.line(line);
    return;
  }
  char text[64];
  std::snprintf(text, sizeof text, ": %.1f MB in %.2f s\n",
                static_cast<double>(program.image().size()) / 1e6, seconds);
  console.text(output_ + text + description_text(program));
}

int ExportVerb::run(Console& console, Interrupt& interrupt) {
  const SteadyClock clock;
  const int64_t start_ns = clock.now_ns();
  const auto source = open_program(model_, context_, console);
  if (!source.ok()) return source.exit_code;
  if (!is_gguf_file(model_)) {
    const Status status = check_source_program(*source.value, context_);
    if (!status.ok()) {
      return console.error(status, status.field() == "--context" ? kUsage : kBadModel);
    }
  }
  const Status written = at_flag("-o", write_output(output_, source.value->image(), interrupt));
  if (written.code() == Code::kCancelled) return console.error(written, kInterrupted);
  if (!written.ok()) return console.error(written, kFailed);
  const auto program = Program::load(output_);
  if (!program.ok()) return console.error(program.status(), kFailed);
  print(*program, static_cast<double>(clock.now_ns() - start_ns) / 1e9, console);
  return interrupt.requested() ? kInterrupted : kDone;
}

}  // namespace

std::unique_ptr<Verb> make_export() { return std::make_unique<ExportVerb>(); }

}  // namespace chorus::cli
