// What lowerings share: a checkpoint whose keys and tensors are asked for by name, so that what
// nobody asked for can be refused by name.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

#include "base/result.h"
#include "exporter/gguf.h"
#include "program/builder.h"

namespace chorus {

// Thread: one at a time. Requires: file and builder outlive it.
class GgufLowering {
 public:
  GgufLowering(const GgufFile& file, ProgramBuilder& builder, std::string architecture)
      : file_(file), builder_(builder), prefix_(std::move(architecture) + ".") {}

  const GgufFile& file() const { return file_; }
  ProgramBuilder& builder() { return builder_; }

  // Keys of the architecture, without its prefix. Errors: kDataLoss with the whole key as field.
  Result<int64_t> get_int(std::string_view key, int64_t low, int64_t high);
  Result<int64_t> int_or(std::string_view key, int64_t otherwise, int64_t low, int64_t high);
  Result<double> get_float(std::string_view key);
  Result<double> float_or(std::string_view key, double otherwise);
  // A feature that no lowering offers: ok when the key is absent or holds `neutral`, which leaves
  // the feature off. Errors: kUnimplemented with the key.
  Status expect_number(std::string_view key, double neutral);
  Status expect_string(std::string_view key, std::string_view neutral);

  // A matrix that maps `columns` inputs to `rows` outputs; GGUF dimensions [columns, rows].
  // Errors: kDataLoss (missing, or another shape) and kUnimplemented (a type that is not packed),
  // both with the tensor's name as field.
  Result<WeightId> matrix(const std::string& name, int64_t rows, int64_t columns);
  // A vector of floats.
  Result<WeightId> vector(const std::string& name, int64_t columns);
  // The same where the tensor may be absent: kNoWeight.
  Result<WeightId> optional_vector(const std::string& name, int64_t columns);
  // Marks a tensor as known without making a weight of it; nullptr when it is absent.
  const GgufTensor* take_tensor(const std::string& name);

  // Errors: kUnimplemented, naming the first key of the architecture, or the first tensor, that
  // nobody asked for.
  Status check_all_used() const;

 private:
  std::string key_name(std::string_view key);

  const GgufFile& file_;
  ProgramBuilder& builder_;
  std::string prefix_;
  std::unordered_set<std::string> used_keys_;
  std::unordered_set<std::string_view> used_tensors_;
};

// The graph and weights of a llama checkpoint. Sets facts.vocabulary and facts.context.
Status lower_llama(GgufLowering& lowering);

// facts.tokenizer, tokens, merges, chat_template and name, from a GGUF's metadata. `storage` owns
// what is not a view into the file, and must outlive the builder's build(). Requires:
// facts.vocabulary is set. Errors: kDataLoss with the key as field.
struct TokenizerStorage {
  std::vector<uint8_t> types;
  std::vector<float> scores;
};
Status lower_tokenizer(const GgufFile& file, ProgramFacts& facts, TokenizerStorage& storage);

}  // namespace chorus
