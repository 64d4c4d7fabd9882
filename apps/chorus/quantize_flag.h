// The flag of `export` that quantises a checkpoint's matrices, and what it says of the result.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "command_line.h"
#include "exporter/quantize.h"
#include "json/value.h"
#include "program/graph.h"

namespace chorus::cli {

class QuantizeFlag {
 public:
  void declare(CommandLine& line);
  // Refuses what is no type that the exporter makes.
  Status parse();
  // nullopt: matrices stay as the checkpoint has them.
  std::optional<WeightType> type() const { return type_; }

  // For the exporter: collects what changed. This object must outlive the export.
  std::function<void(const QuantizedTensor&)> collector();
  // Over all tensors, and the one that lost most; nothing without the flag.
  std::string text() const;
  // Per tensor, in the order of the export.
  json::Value json() const;

 private:
  struct Tensor {
    std::string name;
    WeightType from;
    WeightType to;
    QuantizeError error;
  };

  std::string text_;
  std::optional<WeightType> type_;
  std::vector<Tensor> tensors_;
};

}  // namespace chorus::cli
