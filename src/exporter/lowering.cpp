#include "exporter/lowering.h"

#include "program/names.h"

namespace chorus {

namespace {

std::string shape_text(const std::vector<int64_t>& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(dims[i]);
  return text + "]";
}

std::optional<WeightType> packed_type(uint32_t ggml_type) {
  switch (ggml_type) {
    case kGgmlF32:
      return WeightType::kF32;
    case kGgmlQ4_0:
      return WeightType::kQ4_0;
    case kGgmlQ4_1:
      return WeightType::kQ4_1;
    case kGgmlQ8_0:
      return WeightType::kQ8_0;
    default:
      return std::nullopt;
  }
}

Status check_dims(const GgufTensor& tensor, const std::vector<int64_t>& expected) {
  if (tensor.dims == expected) return Status();
  return data_loss(std::string(tensor.name),
                   "expected shape " + shape_text(expected) + ", found " + shape_text(tensor.dims));
}

Status missing_tensor(const std::string& name) {
  return data_loss(name, "expected this tensor, found none");
}

}  // namespace

std::string GgufLowering::key_name(std::string_view key) {
  std::string name = prefix_ + std::string(key);
  used_keys_.insert(name);
  return name;
}

Result<int64_t> GgufLowering::get_int(std::string_view key, int64_t low, int64_t high) {
  return file_.get_int(key_name(key), low, high);
}

Result<int64_t> GgufLowering::int_or(std::string_view key, int64_t otherwise, int64_t low,
                                     int64_t high) {
  CHORUS_ASSIGN_OR_RETURN(const auto value, file_.find_int(key_name(key), low, high));
  return value.value_or(otherwise);
}

Result<double> GgufLowering::get_float(std::string_view key) {
  return file_.get_float(key_name(key));
}

Result<double> GgufLowering::float_or(std::string_view key, double otherwise) {
  CHORUS_ASSIGN_OR_RETURN(const auto value, file_.find_float(key_name(key)));
  return value.value_or(otherwise);
}

Status GgufLowering::expect_number(std::string_view key, double neutral) {
  const std::string name = key_name(key);
  const GgufValue* value = file_.find(name);
  if (value == nullptr) return Status();
  double number = 0.0;
  if (value->type == GgufType::kF32 || value->type == GgufType::kF64) {
    CHORUS_ASSIGN_OR_RETURN(const auto found, file_.find_float(name));
    number = *found;
  } else if (value->type == GgufType::kBool) {
    CHORUS_ASSIGN_OR_RETURN(const auto found, file_.find_bool(name));
    number = *found ? 1.0 : 0.0;
  } else {
    CHORUS_ASSIGN_OR_RETURN(const auto found, file_.find_int(name, INT64_MIN, INT64_MAX));
    number = static_cast<double>(*found);
  }
  if (number == neutral) return Status();
  return unimplemented(
      name, "expected none or " + std::to_string(neutral) + ", found " + std::to_string(number));
}

Status GgufLowering::expect_string(std::string_view key, std::string_view neutral) {
  const std::string name = key_name(key);
  CHORUS_ASSIGN_OR_RETURN(const auto found, file_.find_string(name));
  if (!found || *found == neutral) return Status();
  return unimplemented(name,
                       "expected none or " + std::string(neutral) + ", found " + quoted(*found));
}

const GgufTensor* GgufLowering::take_tensor(const std::string& name) {
  const GgufTensor* tensor = file_.find_tensor(name);
  if (tensor != nullptr) used_tensors_.insert(tensor->name);
  return tensor;
}

Result<WeightId> GgufLowering::matrix(const std::string& name, int64_t rows, int64_t columns) {
  const GgufTensor* tensor = take_tensor(name);
  if (tensor == nullptr) return missing_tensor(name);
  CHORUS_RETURN_IF_ERROR(check_dims(*tensor, {columns, rows}));
  const auto type = packed_type(tensor->type);
  if (!type) {
    return unimplemented(
        name, "expected type F32, Q4_0, Q4_1 or Q8_0, found " + ggml_type_name(tensor->type));
  }
  return builder_.add_matrix(name, *type, static_cast<int32_t>(rows), static_cast<int32_t>(columns),
                             tensor->data);
}

Result<WeightId> GgufLowering::optional_vector(const std::string& name, int64_t columns) {
  const GgufTensor* tensor = take_tensor(name);
  if (tensor == nullptr) return kNoWeight;
  CHORUS_RETURN_IF_ERROR(check_dims(*tensor, {columns}));
  if (tensor->type != kGgmlF32) {
    return unimplemented(name, "expected type F32, found " + ggml_type_name(tensor->type));
  }
  return builder_.add_vector(name, tensor->data);
}

Result<WeightId> GgufLowering::vector(const std::string& name, int64_t columns) {
  if (file_.find_tensor(name) == nullptr) return missing_tensor(name);
  return optional_vector(name, columns);
}

Status GgufLowering::check_all_used() const {
  for (const GgufValue& value : file_.values()) {
    if (value.key.substr(0, prefix_.size()) != prefix_) continue;
    if (used_keys_.count(std::string(value.key)) == 0) {
      return unimplemented(std::string(value.key), "expected a key that this lowering knows");
    }
  }
  for (const GgufTensor& tensor : file_.tensors()) {
    if (used_tensors_.count(tensor.name) == 0) {
      return unimplemented(std::string(tensor.name), "expected a tensor that this lowering knows");
    }
  }
  return Status();
}

}  // namespace chorus
