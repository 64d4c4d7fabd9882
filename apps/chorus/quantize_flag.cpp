#include "quantize_flag.h"

#include <algorithm>
#include <cstdio>

#include "arguments.h"
#include "program/names.h"

namespace chorus::cli {

namespace {

std::vector<std::string> offered_types() {
  std::vector<std::string> names;
  for (int i = 0; i < kNumWeightTypes; ++i) {
    const auto type = static_cast<WeightType>(i);
    if (can_quantize_to(type)) names.emplace_back(weight_type_name(type));
  }
  return names;
}

}  // namespace

void QuantizeFlag::declare(CommandLine& line) {
  line.flag("--quantize", text_, "TYPE",
            "make matrices q8_0, q4_0, q4_1 or q4_k where they get smaller by it");
}

Status QuantizeFlag::parse() {
  if (text_.empty()) return Status();
  const std::vector<std::string> names = offered_types();
  CHORUS_ASSIGN_OR_RETURN(const int index, parse_choice("--quantize", text_, names));
  type_ = parse_weight_type(names[static_cast<size_t>(index)]);
  return Status();
}

std::function<void(const QuantizedTensor&)> QuantizeFlag::collector() {
  return [this](const QuantizedTensor& tensor) {
    tensors_.push_back({std::string(tensor.name), tensor.from, tensor.to, tensor.error});
  };
}

std::string QuantizeFlag::text() const {
  if (!type_) return "";
  if (tensors_.empty()) return "quantized: nothing; no matrix gets smaller\n";
  QuantizeError all;
  for (const Tensor& tensor : tensors_) all.add(tensor.error);
  const auto worst = std::max_element(
      tensors_.begin(), tensors_.end(),
      [](const Tensor& a, const Tensor& b) { return a.error.relative() < b.error.relative(); });
  char numbers[96];
  std::snprintf(numbers, sizeof numbers,
                "quantized: %zu matrices, relative error %.4f, at most %.4f", tensors_.size(),
                all.relative(), worst->error.relative());
  return std::string(numbers) + " (" + worst->name + ")\n";
}

json::Value QuantizeFlag::json() const {
  json::Array all;
  for (const Tensor& tensor : tensors_) {
    json::Value value;
    value.set("name", tensor.name);
    value.set("from", weight_type_name(tensor.from));
    value.set("to", weight_type_name(tensor.to));
    value.set("relative_error", tensor.error.relative());
    all.push_back(std::move(value));
  }
  return json::Value(std::move(all));
}

}  // namespace chorus::cli
