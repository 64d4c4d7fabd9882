#include "text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "text/rust_border.h"

namespace chorus::text {
namespace {

// Of chorus_text.h.
constexpr uint8_t kIsSpecial = 1;
constexpr uint8_t kIsAdded = 2;
enum SpaceRule { kNoSpace = 0, kOneAfterAdded = 1, kOneSpace = 2, kOfFirstToken = 3 };

std::vector<ChorusTextBytes> border_list(const std::vector<std::string>& texts) {
  std::vector<ChorusTextBytes> list;
  list.reserve(texts.size());
  for (const std::string& text : texts) list.push_back(border_bytes(text));
  return list;
}

std::string out_of_range(int32_t id, int32_t vocabulary_size) {
  return "expected an id below " + std::to_string(vocabulary_size) + ", found " +
         std::to_string(id);
}

}  // namespace

void Tokenizer::Deleter::operator()(ChorusTextTokenizer* tokenizer) const {
  chorus_text_tokenizer_destroy(tokenizer);
}

Tokenizer::Tokenizer(Handle handle, const Vocabulary& vocabulary)
    : handle_(std::move(handle)),
      bos_id_(vocabulary.bos_id),
      eos_id_(vocabulary.eos_id),
      unknown_id_(vocabulary.unknown_id),
      padding_id_(vocabulary.padding_id),
      adds_bos_(vocabulary.add_bos),
      may_change_text_(vocabulary.model == "huggingface") {
  chorus_text_tokenizer_pieces(handle_.get(), &pieces_);
  vocabulary_size_ = static_cast<int32_t>(pieces_.count);
}

Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::create(const Vocabulary& vocabulary) {
  const std::vector<ChorusTextBytes> tokens = border_list(vocabulary.tokens);
  const std::vector<ChorusTextBytes> merges = border_list(vocabulary.merges);
  const ChorusTextVocabulary view{
      .model = border_bytes(vocabulary.model),
      .definition = border_bytes(vocabulary.definition),
      .num_ids = static_cast<size_t>(std::max(vocabulary.num_ids, 0)),
      .pre_tokenizer = border_bytes(vocabulary.pre_tokenizer),
      .tokens = tokens.data(),
      .num_tokens = tokens.size(),
      .merges = merges.data(),
      .num_merges = merges.size(),
      .scores = vocabulary.scores.data(),
      .num_scores = vocabulary.scores.size(),
      .token_types = vocabulary.token_types.data(),
      .num_token_types = vocabulary.token_types.size(),
      .bos_id = vocabulary.bos_id,
      .eos_id = vocabulary.eos_id,
      .unknown_id = vocabulary.unknown_id,
      .padding_id = vocabulary.padding_id,
      .add_bos = vocabulary.add_bos,
      .add_eos = vocabulary.add_eos,
      .add_space_prefix = vocabulary.add_space_prefix,
  };
  ChorusTextTokenizer* created = nullptr;
  CHORUS_RETURN_IF_ERROR(call_rust(chorus_text_tokenizer_create, &view, &created));
  return std::unique_ptr<Tokenizer>(new Tokenizer(Handle(created), vocabulary));
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text,
                                               const EncodeOptions& options) const {
  if (options.refuse_lossy && may_change_text_)
    CHORUS_RETURN_IF_ERROR(check_lossless(text, options));
  return encode_unchecked(text, options);
}

Result<std::vector<int32_t>> Tokenizer::encode_unchecked(std::string_view text,
                                                         const EncodeOptions& options) const {
  std::vector<int32_t> ids;
  const ChorusTextSink sink = border_sink(ids);
  CHORUS_RETURN_IF_ERROR(call_rust(chorus_text_tokenizer_encode, handle_.get(), border_bytes(text),
                                   options.parse_special, options.add_special, options.refuse_lossy,
                                   &sink));
  return ids;
}

Status Tokenizer::check_lossless(std::string_view text, EncodeOptions options) const {
  options.add_special = false;
  CHORUS_ASSIGN_OR_RETURN(const auto ids, encode_unchecked(text, options));
  CHORUS_ASSIGN_OR_RETURN(const std::string back, decode(ids, {.whole_text = true}));
  if (back == text) return Status();
  const auto differ = std::mismatch(text.begin(), text.end(), back.begin(), back.end());
  return invalid_argument("prompt", "the tokenizer changes or drops what begins at byte " +
                                        std::to_string(differ.first - text.begin()));
}

Result<std::string> Tokenizer::decode(std::span<const int32_t> ids,
                                      const DecodeOptions& options) const {
  const int32_t rule = options.whole_text ? pieces_.space_rule : kNoSpace;
  std::string text;
  bool is_first = true;
  bool after_added = true;
  for (size_t index = 0; index < ids.size(); ++index) {
    const int32_t id = ids[index];
    if (!is_valid(id)) {
      return invalid_argument("tokens[" + std::to_string(index) + "]",
                              out_of_range(id, vocabulary_size_));
    }
    std::string_view piece = piece_of(id);
    const bool is_added = (pieces_.flags[id] & kIsAdded) != 0;
    if (rule == kOneAfterAdded && after_added && !is_added && piece.starts_with(' ')) {
      piece.remove_prefix(1);
    }
    after_added = is_added;
    if (options.skip_special && is_special(id)) continue;
    text += piece;
    if (rule == kOfFirstToken && is_first) std::erase(text, ' ');
    is_first = false;
  }
  if (rule == kOneSpace && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

Result<std::string_view> Tokenizer::piece(int32_t id) const {
  if (!is_valid(id)) return invalid_argument("token", out_of_range(id, vocabulary_size_));
  return piece_of(id);
}

bool Tokenizer::is_special(int32_t id) const {
  return is_valid(id) && (pieces_.flags[id] & kIsSpecial) != 0;
}

std::optional<int32_t> Tokenizer::special_named(std::string_view name) const {
  const auto ids = encode(name, {.parse_special = true, .add_special = false});
  const bool is_named =
      ids.ok() && ids->size() == 1 && is_special(ids->front()) && piece_of(ids->front()) == name;
  return is_named ? std::optional(ids->front()) : std::nullopt;
}

std::string_view Tokenizer::piece_of(int32_t id) const {
  const uint64_t start = pieces_.ends[id];
  return {pieces_.bytes + start, static_cast<size_t>(pieces_.ends[id + 1] - start)};
}

}  // namespace chorus::text
