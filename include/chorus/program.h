// Exported models: what an engine runs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "chorus/base/result.h"
#include "chorus/exec/types.h"

namespace chorus {

// A graph, its packed weights and the model's text parts. Immutable, to be shared; opaque here.
class Program;

struct ModelOptions {
  int32_t context = 0;                              // 0: the model's
  std::function<void(double share_done)> progress;  // while exporting; on the calling thread
};

// A .chorus program is mapped, a .gguf file exported in memory. Errors: kNotFound (no such file),
// kDataLoss (damaged or not acceptable; the field says where), kUnimplemented (a folder, or a
// feature that the exporter does not offer).
Result<std::shared_ptr<const Program>> load_program(const std::string& path,
                                                    const ModelOptions& options);

// The ids that end an answer.
std::vector<TokenId> end_tokens(const Program& program);

}  // namespace chorus
