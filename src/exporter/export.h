// Turns checkpoints into programs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/result.h"
#include "exporter/gguf.h"
#include "exporter/hf_folder.h"
#include "exporter/quantize.h"
#include "program/builder.h"
#include "program/program.h"

namespace chorus {

// Rows of one forward of an exported program, at most.
inline constexpr int32_t kDefaultMaxStep = 2048;

struct ExportOptions {
  int32_t context = 0;     // longest sequence; 0: as the checkpoint was trained
  BuildProgress progress;  // may be empty
  // Matrices become this type where it makes them smaller, or Q8_0 where it needs other columns
  // (exporter/quantize.h); `report`, which may be empty, is called for each.
  std::optional<WeightType> quantize;
  std::function<void(const QuantizedTensor&)> report;
};

// Exports in memory: one method `forward` of 1 to kDefaultMaxStep tokens. The same checkpoint and
// options give the same bytes. Errors: kNotFound and kInvalidArgument for the path or an option
// ("context" above the trained one, "quantize" to a type that is not made); kDataLoss for what is
// wrong in the checkpoint and kUnimplemented for what no lowering offers, both with the key or
// tensor as field.
Result<Program> export_program(const std::string& source, const ExportOptions& options = {});

// The same into a file, which appears whole or not at all.
Status export_to_file(const std::string& source, const std::string& target,
                      const ExportOptions& options = {});

// The image of a program file from a checkpoint that is open already.
Result<AlignedBuffer> export_gguf(const GgufFile& file, const ExportOptions& options = {});
Result<AlignedBuffer> export_folder(const HfFolder& folder, const ExportOptions& options = {});

// The tensors of a folder that its architecture leaves out by name, such as a vision tower's.
// Errors: as export_folder, but for the context.
Result<std::vector<std::string>> left_out_tensors(const HfFolder& folder);

}  // namespace chorus
