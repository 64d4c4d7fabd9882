#include "exporter/gguf_config.h"

#include "program/names.h"

namespace chorus {

std::string GgufConfig::name_of(std::string_view key) {
  std::string name = prefix_ + std::string(key);
  used_.insert(name);
  return name;
}

Result<int64_t> GgufConfig::get_int(std::string_view key, int64_t low, int64_t high) {
  return file_.get_int(name_of(key), low, high);
}

Result<int64_t> GgufConfig::int_or(std::string_view key, int64_t otherwise, int64_t low,
                                   int64_t high) {
  CHORUS_ASSIGN_OR_RETURN(const auto value, find_int(key, low, high));
  return value.value_or(otherwise);
}

Result<std::optional<int64_t>> GgufConfig::find_int(std::string_view key, int64_t low,
                                                    int64_t high) {
  return file_.find_int(name_of(key), low, high);
}

Result<double> GgufConfig::get_float(std::string_view key) { return file_.get_float(name_of(key)); }

Result<double> GgufConfig::float_or(std::string_view key, double otherwise) {
  CHORUS_ASSIGN_OR_RETURN(const auto value, find_float(key));
  return value.value_or(otherwise);
}

Result<std::optional<double>> GgufConfig::find_float(std::string_view key) {
  return file_.find_float(name_of(key));
}

Result<std::optional<std::string_view>> GgufConfig::find_string(std::string_view key) {
  return file_.find_string(name_of(key));
}

Result<GgufConfig::PerLayer> GgufConfig::find_per_layer(std::string_view key, int64_t count) {
  const std::string name = name_of(key);
  PerLayer found;
  const GgufValue* value = file_.find(name);
  if (value == nullptr) return found;
  if (!value->is_array) {
    CHORUS_ASSIGN_OR_RETURN(found.number, file_.find_int(name, INT32_MIN, INT32_MAX));
    return found;
  }
  if (value->type == GgufType::kBool) {
    for (const std::byte flag : value->bytes) found.values.push_back(flag != std::byte{0} ? 1 : 0);
  } else {
    CHORUS_ASSIGN_OR_RETURN(const auto values, file_.find_ints(name));
    if (values) found.values = *values;
  }
  if (static_cast<int64_t>(found.values.size()) != count) {
    return data_loss(name, "expected one value for each of " + std::to_string(count) +
                               " layers, found " + std::to_string(found.values.size()));
  }
  return found;
}

Status GgufConfig::expect_number(std::string_view key, double neutral) {
  const std::string name = name_of(key);
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

Status GgufConfig::expect_string(std::string_view key, std::string_view neutral) {
  CHORUS_ASSIGN_OR_RETURN(const auto found, find_string(key));
  if (!found || *found == neutral) return Status();
  return unimplemented(name_of(key),
                       "expected none or " + std::string(neutral) + ", found " + quoted(*found));
}

Status GgufConfig::check_all_used() const {
  for (const GgufValue& value : file_.values()) {
    if (value.key.substr(0, prefix_.size()) != prefix_) continue;
    if (used_.count(std::string(value.key)) == 0) {
      return unimplemented(std::string(value.key), "expected a key that this lowering knows");
    }
  }
  return Status();
}

}  // namespace chorus
