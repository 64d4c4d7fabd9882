// Text to token ids and back, for vocabularies in the form that GGUF files hold them and for
// tokenizer.json files.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/chorus_text.h"
#include "text/types.h"

namespace chorus::text {

// Values of tokenizer.ggml.token_type.
enum TokenType : int32_t {
  kUndefinedToken = 0,
  kNormalToken = 1,
  kUnknownToken = 2,
  kControlToken = 3,
  kUserDefinedToken = 4,
  kUnusedToken = 5,
  kByteToken = 6,
};

// The keys tokenizer.ggml.* of a GGUF file, as they stand there, or a tokenizer.json. Not checked;
// Tokenizer::create does.
struct Vocabulary {
  // "gpt2": byte-level BPE; "llama": BPE by scores; "huggingface": as the definition says.
  std::string model = {};
  std::string definition = {};  // huggingface: the text of tokenizer.json
  int32_t num_ids = 0;          // huggingface: ids of the model; those without token mean nothing
  std::string pre_tokenizer = {};  // gpt2: how text is cut into words, "smollm" say
  // UTF-8, distinct; an empty one is in no text. Normal tokens of gpt2 in GPT-2's byte symbols,
  // those of llama with U+2581 for a space.
  std::vector<std::string> tokens = {};
  std::vector<std::string> merges = {};   // gpt2: "left right", best rank first
  std::vector<float> scores = {};         // llama: one per token, the best is merged first
  std::vector<int32_t> token_types = {};  // TokenType, one per token; empty: all normal
  int32_t bos_id = -1;                    // -1: none
  int32_t eos_id = -1;
  int32_t unknown_id = -1;
  int32_t padding_id = -1;
  bool add_bos = false;           // begin an encoded text with bos_id
  bool add_eos = false;           // end it with eos_id
  bool add_space_prefix = false;  // llama: a text begins with a space, also after an added token
};

struct DecodeOptions {
  bool skip_special = false;  // leave control and unknown tokens out
  // The ids are a text from its beginning: spaces that encode() put in front are left out again.
  bool whole_text = false;
};

// Invariant: immutable after create(). Thread: any, several at a time.
//
// The same ids as llama.cpp's tokenizer for valid UTF-8, but that BOS is not added to a text which
// begins with it, and that text never becomes a control token unless asked. Added tokens are found
// longest first. Of a tokenizer.json the ids of Hugging Face's library, with the same two
// exceptions.
class Tokenizer {
 public:
  // The vocabulary is copied. Errors: kUnimplemented names a model or pre-tokenizer that is not
  // offered ("tokenizer.model", "tokenizer.pre"); kDataLoss names what is malformed
  // ("tokenizer.tokens[7]", "tokenizer.merges[3]", "tokenizer.bos_token_id", ...): no tokens, a
  // repeated one, a merge of unknown tokens, ids out of range, lists of unequal length, scores that
  // are missing or NaN; "tokenizer.json" that is none. kUnimplemented on "tokenizer.json.decoder"
  // for one whose pieces do not stand for themselves.
  static Result<std::unique_ptr<Tokenizer>> create(const Vocabulary& vocabulary);

  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  ~Tokenizer();

  // Any bytes may come, NUL among them. Bytes that are no valid UTF-8 are encoded as themselves
  // (where llama.cpp's gpt2 puts U+FFFD), and count as punctuation where words are cut. A
  // vocabulary may lack the token of a byte (SmolLM2's has none for 21 of them: six control
  // characters, the bytes of planes 4 to 11, and bytes that UTF-8 never uses): such a byte is
  // dropped, as the model's own tokenizer does, or refused (refuse_lossy) with kInvalidArgument on
  // "prompt". llama writes its unknown token, if it has one, for a character without tokens, and
  // reads U+2581 as a space; refuse_lossy refuses both. Otherwise decode(encode(text), {.whole_text
  // = true}) == text, but for BOS and EOS. Cost: O(n log n) in the length of the longest word
  // (llama: of the text).
  Result<std::vector<int32_t>> encode(std::string_view text,
                                      const EncodeOptions& options = {}) const;

  // The exact bytes. Errors: kInvalidArgument on "tokens[i]" for an id out of the vocabulary.
  Result<std::string> decode(std::span<const int32_t> ids, const DecodeOptions& options = {}) const;

  // The bytes of one token, valid as long as the tokenizer. A token may be part of a character.
  // Errors: kInvalidArgument on "token".
  Result<std::string_view> piece(int32_t id) const;

  int32_t vocabulary_size() const { return vocabulary_size_; }
  bool is_valid(int32_t id) const { return id >= 0 && id < vocabulary_size_; }
  // Whether the token is a control or unknown token. False for ids out of the vocabulary.
  bool is_special(int32_t id) const;
  // The control or unknown token of that name. Nothing for other texts.
  std::optional<int32_t> special_named(std::string_view name) const;

  // -1: the vocabulary names none.
  int32_t bos_id() const { return bos_id_; }
  int32_t eos_id() const { return eos_id_; }
  int32_t unknown_id() const { return unknown_id_; }
  int32_t padding_id() const { return padding_id_; }
  bool adds_bos() const { return adds_bos_; }

 private:
  struct Deleter {
    void operator()(ChorusTextTokenizer* tokenizer) const;
  };
  using Handle = std::unique_ptr<ChorusTextTokenizer, Deleter>;

  Tokenizer(Handle handle, const Vocabulary& vocabulary);
  std::string_view piece_of(int32_t id) const;
  // encode() without refuse_lossy of definitions.
  Result<std::vector<int32_t>> encode_unchecked(std::string_view text,
                                                const EncodeOptions& options) const;
  Status check_lossless(std::string_view text, EncodeOptions options) const;

  Handle handle_;
  int32_t vocabulary_size_ = 0;
  int32_t bos_id_;
  int32_t eos_id_;
  int32_t unknown_id_;
  int32_t padding_id_;
  bool adds_bos_;
  bool may_change_text_;
  ChorusTextPieces pieces_;  // of handle_
};

}  // namespace chorus::text
