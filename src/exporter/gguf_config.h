// The keys of a GGUF file that describe its architecture, as lowerings ask for them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/result.h"
#include "exporter/gguf.h"

namespace chorus {

// Keys are named without the architecture's prefix. What was asked for counts as known, so that the
// rest can be refused by name. Requires: the file outlives it. Thread: one at a time.
class GgufConfig {
 public:
  GgufConfig(const GgufFile& file, std::string_view architecture)
      : file_(file), prefix_(std::string(architecture) + ".") {}

  const GgufFile& file() const { return file_; }

  // Errors of all: kDataLoss with the whole key as field.
  Result<int64_t> get_int(std::string_view key, int64_t low, int64_t high);
  Result<int64_t> int_or(std::string_view key, int64_t otherwise, int64_t low, int64_t high);
  Result<double> get_float(std::string_view key);
  Result<double> float_or(std::string_view key, double otherwise);
  Result<std::optional<int64_t>> find_int(std::string_view key, int64_t low, int64_t high);
  Result<std::optional<double>> find_float(std::string_view key);
  Result<std::optional<std::string_view>> find_string(std::string_view key);
  // A number, or an array of numbers or bools with one for each of `count` layers.
  struct PerLayer {
    std::optional<int64_t> number;
    std::vector<int64_t> values;
  };
  Result<PerLayer> find_per_layer(std::string_view key, int64_t count);

  // A feature that no lowering offers: ok when the key is absent or holds `neutral`, which leaves
  // the feature off. Errors: kUnimplemented with the key.
  Status expect_number(std::string_view key, double neutral);
  Status expect_string(std::string_view key, std::string_view neutral);
  // A key that changes nothing here.
  void ignore(std::string_view key) { name_of(key); }

  // The whole key, for errors.
  std::string name_of(std::string_view key);

  // Errors: kUnimplemented, naming the first key of the architecture that nobody asked for.
  Status check_all_used() const;

 private:
  const GgufFile& file_;
  std::string prefix_;
  std::unordered_set<std::string> used_;
};

}  // namespace chorus
