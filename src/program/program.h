// A loaded program: an exported model, verified, with its weights mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/memory_map.h"
#include "base/result.h"
#include "base/sha256.h"
#include "program/graph.h"
#include "program/manifest.h"

namespace chorus {

// What a tokenizer is built from. Views into the program.
struct TokenizerData {
  TokenizerFacts facts;
  std::vector<std::string_view> tokens;  // bytes as the checkpoint writes them, index = token id
  std::span<const uint8_t> types;  // per token, GGUF's numbers: 1 normal, 2 unknown, 3 control,
                                   // 4 user defined, 5 unused, 6 byte; or empty
  std::span<const float> scores;   // per token, or empty
  std::vector<std::string_view> merges;  // "left right", best first; or empty
  std::string_view definition;           // of "huggingface", which has no tokens here; or empty
};

// Invariants: everything but the bytes of weights has been checked; every id in the graph is in
// range; weight_bytes(w).size() fits the weight's shape and packing; nothing changes after
// creation. Thread: reads from any. Moves, does not copy; views and spans stay valid across moves.
class Program {
 public:
  // Maps the file: weights are read when they are used. Errors: kNotFound and kInvalidArgument for
  // the path; kDataLoss for what is in the file, with the fault's place as field.
  static Result<Program> load(const std::string& path);
  // The same for a file image in memory. Errors: kDataLoss.
  static Result<Program> from_bytes(AlignedBuffer image);

  const Graph& graph() const { return manifest_.graph; }
  std::span<const Weight> weights() const { return manifest_.weights; }
  // Requires: 0 <= weight < weights().size(). 64-byte aligned.
  std::span<const std::byte> weight_bytes(WeightId weight) const;

  const std::vector<Method>& methods() const { return manifest_.methods; }
  int32_t context() const { return manifest_.context; }        // longest sequence, in tokens
  int32_t vocabulary() const { return manifest_.vocabulary; }  // columns of the logits
  const std::string& architecture() const { return manifest_.architecture; }
  const std::string& name() const { return manifest_.name; }
  int32_t numerics_version() const { return manifest_.numerics_version; }

  // facts.model is empty when the program carries no tokenizer.
  const TokenizerData& tokenizer() const { return tokenizer_; }
  // Empty: none.
  std::string_view chat_template() const { return chat_template_; }

  // Names the program: the checksum of its manifest, which holds the hash of every segment.
  const Digest& content() const { return content_; }
  // Equal for programs that compute the same KV bits (manifest.h).
  const Digest& kv_identity() const { return kv_identity_; }
  // The stored hash of a weight's bytes.
  const Digest& weight_hash(WeightId weight) const;

  // Reads every weight and compares its hash. Errors: kDataLoss, field "weights[NAME]".
  Status verify_weights() const;

  const Manifest& manifest() const { return manifest_; }
  // The whole file.
  std::span<const std::byte> image() const { return image_; }

 private:
  Program() = default;
  // Reads and checks everything. Requires: image_ is set.
  Status parse();
  Status check_padding(uint64_t manifest_offset) const;
  Status read_text_segments();

  MemoryMap map_;  // one of the two holds the image
  AlignedBuffer buffer_;
  std::span<const std::byte> image_;
  Manifest manifest_;
  TokenizerData tokenizer_;
  std::string_view chat_template_;
  Digest content_{};
  Digest kv_identity_{};
};

}  // namespace chorus
