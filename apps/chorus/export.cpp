// chorus export: a program file from a checkpoint.
#include "exporter/export.h"

#include <cstdio>
#include <filesystem>
#include <utility>

#include "arguments.h"
#include "method_flags.h"
#include "models.h"
#include "program/rewrite.h"
#include "quantize_flag.h"
#include "verbs.h"

namespace chorus::cli {

namespace {

bool is_checkpoint(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error) || is_gguf_file(path);
}

class ExportVerb final : public Verb {
 public:
  ExportVerb() : Verb("export", "write a program file from a checkpoint") {}
  void declare(CommandLine& line) override;
  Status parse() override;
  int run(Console& console, Interrupt& interrupt) override;

 private:
  Opened<std::shared_ptr<const Program>> open_source(Console& console);
  Status check_source(const Program& source);
  Status write(const Program& source, Interrupt& interrupt) const;
  void print(const Program& program, double seconds, Console& console) const;

  MethodFlags method_flags_;
  QuantizeFlag quantize_flag_;
  std::vector<Method> methods_;  // empty: the source's
  std::string model_, output_, context_text_;
  int32_t context_ = 0;  // 0: the model's
};

void ExportVerb::declare(CommandLine& line) {
  line.argument(
      "MODEL", model_,
      "a .gguf file or a Hugging Face folder, or a .chorus program, whose weights are copied");
  line.group("Output");
  line.flag("-o,--output", output_, "FILE", "the .chorus file to write");
  line.flag("--context", context_text_, "N", "longest session in tokens (default: the model's)");
  method_flags_.declare(line);
  quantize_flag_.declare(line);
}

Status ExportVerb::parse() {
  if (output_.empty()) return invalid_argument("-o", "expected the file to write");
  CHORUS_RETURN_IF_ERROR(check_not_same("-o", output_, model_));
  CHORUS_RETURN_IF_ERROR(method_flags_.parse());
  CHORUS_RETURN_IF_ERROR(quantize_flag_.parse());
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
    if (quantize_flag_.type()) line.set("quantized", quantize_flag_.json());
    console.line(line);
    return;
  }
  char text[64];
  std::snprintf(text, sizeof text, ": %.1f MB in %.2f s\n",
                static_cast<double>(program.image().size()) / 1e6, seconds);
  console.text(output_ + text + description_text(program) + quantize_flag_.text());
}

Opened<std::shared_ptr<const Program>> ExportVerb::open_source(Console& console) {
  if (!quantize_flag_.type()) return open_program(model_, context_, console);
  if (!is_checkpoint(model_)) {
    auto program = open_program(model_, context_, console);
    if (!program.ok()) return program;
    const Status refused =
        unimplemented("--quantize", "expected a checkpoint, found a program, whose weights stay");
    return {nullptr, console.error(refused, kUsage)};
  }
  ExportOptions options;
  options.context = context_;
  options.quantize = quantize_flag_.type();
  options.report = quantize_flag_.collector();
  return export_checkpoint(model_, std::move(options), console);
}

// What is asked of the source's methods and context, with the flag as field.
Status ExportVerb::check_source(const Program& source) {
  if (context_ > source.context()) {
    return invalid_argument("--context", "expected at most " + std::to_string(source.context()) +
                                             ", the context of the program, found " +
                                             std::to_string(context_));
  }
  if (!method_flags_.is_given()) return Status();
  CHORUS_ASSIGN_OR_RETURN(methods_, method_flags_.apply(source.methods()));
  return Status();
}

// As it is, if nothing is asked of it.
Status ExportVerb::write(const Program& source, Interrupt& interrupt) const {
  const bool keeps_context = context_ == 0 || context_ == source.context();
  if (keeps_context && (methods_.empty() || methods_ == source.methods())) {
    return write_output(output_, source.image(), interrupt);
  }
  CHORUS_ASSIGN_OR_RETURN(const AlignedBuffer image, rewrite_image(source, {context_, methods_}));
  return write_output(output_, image.bytes(), interrupt);
}

int ExportVerb::run(Console& console, Interrupt& interrupt) {
  const SteadyClock clock;
  const int64_t start_ns = clock.now_ns();
  if (is_checkpoint(model_)) {  // before the work of exporting it
    const auto methods = method_flags_.apply(forward_method(kDefaultMaxStep));
    if (!methods.ok()) return console.error(methods.status(), kUsage);
  }
  const auto source = open_source(console);
  if (!source.ok()) return source.exit_code;
  const Status wanted = check_source(*source.value);
  if (!wanted.ok()) return console.error(wanted, kUsage);
  if (!is_checkpoint(model_)) {  // else they were packed just now
    const Status status = source.value->verify_weights();
    if (!status.ok()) return console.error(status, kBadModel);
  }
  const Status written = at_flag("-o", write(*source.value, interrupt));
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
