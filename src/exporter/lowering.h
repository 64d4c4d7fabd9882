// What lowerings share: the tensors of a checkpoint become weights by name, so that what nobody
// asked for can be refused by name; and the layers that architectures have in common.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "exporter/checkpoint.h"
#include "exporter/decoder_config.h"
#include "exporter/gguf_config.h"
#include "exporter/hf_config.h"
#include "exporter/quantize.h"
#include "program/builder.h"

namespace chorus {

// Whether linear layers have a bias beside their weight.
enum class Bias : uint8_t {
  kWhereGiven,  // each by itself
  kNone,        // a tensor that is there all the same is refused by check_all_used()
  kAlways,
};

// What a decoder's tensors are called in a kind of checkpoint; without ".weight" and ".bias". Those
// of a layer stand behind `layers` and its number and a dot. Empty: the architecture has none.
struct DecoderNames {
  std::string embedding;
  std::string layers;
  std::string final_norm;
  std::string head;
  std::string_view attention_norm;
  std::string_view q, k, v, gate, attention_output;
  std::string_view q_norm, k_norm;
  std::string_view attention_post_norm;
  std::string_view ff_norm;
  std::string_view ff_gate, ff_up, ff_down;
  std::string_view ff_post_norm;
  bool head_may_be_tied = true;  // to the embedding, where the checkpoint has no head
  Bias attention_bias = Bias::kWhereGiven;
  Bias ff_bias = Bias::kWhereGiven;

  std::string layer(int64_t index) const { return layers + std::to_string(index) + "."; }
};

// Those of every GGUF file.
DecoderNames gguf_names();
// Those that most Hugging Face checkpoints share, behind the first of the prefixes in use under
// which this one has an embedding.
DecoderNames hf_names(const Checkpoint& checkpoint);

// The text model's configuration: the section text_config of a checkpoint that has a vision tower,
// too, whose own members, `vision`, are then left out; else the whole.
Result<HfConfig> text_config(const HfConfig& config, std::span<const std::string_view> vision);

// One of the weights of a joined linear layer.
struct LinearPart {
  std::string name;
  int64_t rows = 0;
  Bias bias = Bias::kWhereGiven;
};

// Those of the joined projections of attention.
std::vector<LinearPart> qkv_parts(const DecoderNames& names, const std::string& prefix,
                                  const DecoderSizes& sizes);

// A norm's weight as it is stored.
struct NormShape {
  int64_t width = 0;
  float epsilon = 0.0f;
  float offset = 0.0f;    // what is added to each stored value
  bool per_head = false;  // over groups of `width` columns
};

// Thread: one at a time. Requires: checkpoint and builder outlive it.
class Lowering {
 public:
  Lowering(const Checkpoint& checkpoint, ProgramBuilder& builder)
      : checkpoint_(checkpoint), builder_(builder) {}

  // Matrices asked for from here on become `target`, or what quantized_type() says; `report`, which
  // may be empty, is called for each that changes. Requires: can_quantize_to(target).
  using QuantizeReport = std::function<void(const QuantizedTensor&)>;
  void quantize_to(WeightType target, QuantizeReport report);

  const Checkpoint& checkpoint() const { return checkpoint_; }
  ProgramBuilder& builder() { return builder_; }

  bool has(std::string_view tensor) const { return checkpoint_.find(tensor) != nullptr; }
  // A matrix that maps `columns` inputs to `rows` outputs. Errors: kDataLoss (missing, or another
  // shape, or values that cannot be quantised) and kUnimplemented (a type that is not packed), all
  // with the tensor's name as field.
  Result<WeightId> matrix(const std::string& name, int64_t rows, int64_t columns);
  // A vector of floats, `offset` added to each.
  Result<WeightId> vector(const std::string& name, int64_t columns, float offset = 0.0f);
  // The same where the tensor may be absent: kNoWeight.
  Result<WeightId> optional_vector(const std::string& name, int64_t columns, float offset = 0.0f);
  // The numbers of a vector that becomes no weight; empty when it is absent.
  Result<std::vector<float>> take_floats(const std::string& name, int64_t columns);
  // Tensors whose names begin so belong to another task: they are left out.
  void skip(std::string_view prefix);
  // What skip() was told of, in the order of the checkpoint.
  const std::vector<std::string_view>& left_out() const { return left_out_; }

  // One linear over several weights NAME.weight, with their biases NAME.bias.
  Result<std::vector<ValueId>> linear(const std::vector<LinearPart>& parts, int64_t columns,
                                      ValueId x);
  // The same of one.
  Result<ValueId> linear(const LinearPart& part, int64_t columns, ValueId x);
  // By the weight NAME.weight.
  Result<ValueId> rms_norm(const std::string& name, const NormShape& shape, ValueId x);

  // What `text` says of attention_bias, and the whole `config`, or else `text`, of
  // tie_word_embeddings. A tied head is the embedding table, also where the checkpoint stores it
  // again; a head of other values is no tied one, as for transformers.
  Status apply_bias_and_tie(const HfConfig& config, const HfConfig& text, bool tied_otherwise,
                            DecoderNames& names);
  // The embedding table, whose rows are the vocabulary: sets facts.vocabulary.
  Result<WeightId> embedding(const DecoderNames& names, int64_t width);
  // The logits of the selected rows: by the head's own weight, or by the embedding table where that
  // is what the names say.
  Result<ValueId> head(const DecoderNames& names, int64_t width, WeightId table, ValueId x);

  // The shape of the attention of a new KV layer of `group`, without its scale.
  AttentionShape add_attention(int32_t group, const DecoderSizes& sizes);
  // down(activation(gate(x)) * up(x)); kSilu or kGelu.
  Result<ValueId> feed_forward(const DecoderNames& names, const std::string& prefix,
                               const DecoderSizes& sizes, OpKind activation, ValueId x);

  // Errors: kUnimplemented, naming the first tensor that nobody asked for.
  Status check_all_used() const;

 private:
  // Marks a tensor as known; nullptr when it is absent.
  const CheckpointTensor* take(const std::string& name);
  // Marks the tensors whose names begin so as known, and returns them.
  std::vector<std::string_view> take_all(std::string_view prefix);
  Result<WeightId> bias_of(const LinearPart& part);

  Result<WeightId> quantized_matrix(const std::string& name, WeightType from, WeightType to,
                                    int32_t rows, int32_t columns,
                                    std::span<const std::byte> source);

  const Checkpoint& checkpoint_;
  ProgramBuilder& builder_;
  std::unordered_set<std::string_view> used_;
  std::vector<std::string_view> left_out_;
  std::optional<WeightType> quantize_to_;
  QuantizeReport report_;
};

// Each sets facts.vocabulary and facts.context, and takes the whole of its checkpoint.
Status lower_llama(GgufConfig& config, Lowering& lowering);
Status lower_llama(const HfConfig& config, Lowering& lowering);
Status lower_gemma3(GgufConfig& config, Lowering& lowering);
Status lower_gemma3(const HfConfig& config, Lowering& lowering);
Status lower_muse_glimmer(GgufConfig& config, Lowering& lowering);
Status lower_muse_glimmer(const HfConfig& config, Lowering& lowering);

// facts.tokenizer, tokens, merges, chat_template and name, from a GGUF's metadata. `storage` owns
// what is not a view into the file, and must outlive the builder's build(). Requires:
// facts.vocabulary is set. Errors: kDataLoss with the key as field.
struct TokenizerStorage {
  std::vector<uint8_t> types;
  std::vector<float> scores;
};
Status lower_tokenizer(const GgufFile& file, ProgramFacts& facts, TokenizerStorage& storage);

}  // namespace chorus
