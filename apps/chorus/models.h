// Opening what MODEL names, for every verb that takes one.
#pragma once

#include <memory>
#include <string>

#include "chorus/engine.h"
#include "chorus/model.h"
#include "console.h"
#include "exporter/export.h"

namespace chorus::cli {

// A value, or the exit code of an error that was already reported.
template <typename T>
struct Opened {
  T value{};
  int exit_code = kDone;
  bool ok() const { return exit_code == kDone; }
};

// What MODEL may be, for help and for the error of a missing one.
inline constexpr const char* kModelKinds =
    "a .chorus program, a .gguf file or a Hugging Face folder";

bool is_gguf_file(const std::string& path);

// The program of a path, with progress while a GGUF file is exported. Names that are like a missing
// file's are suggested.
Opened<std::shared_ptr<const Program>> open_program(const std::string& path, int32_t context,
                                                    Console& console);

// The program of a checkpoint, exported in memory as `options` say, with progress.
Opened<std::shared_ptr<const Program>> export_checkpoint(const std::string& path,
                                                         ExportOptions options, Console& console);

Opened<std::unique_ptr<Engine>> open_engine(std::shared_ptr<const Program> program,
                                            const EngineOptions& options, const Clock& clock,
                                            Console& console);

// What a program is, in lines for people.
std::string description_text(const Program& program);

// The summary's description of a program and of the engine's effective flags.
json::Value model_json(const Program& program, const std::string& path);
json::Value engine_json(const EngineSettings& settings);

// The summary's "kv", and its "forwards" and "padded_rows", from what the executor counted.
json::Value kv_json(const EngineSettings& settings, const Usage& usage);
json::Value by_method_json(const Usage& usage, int64_t MethodUsage::* count);

}  // namespace chorus::cli
