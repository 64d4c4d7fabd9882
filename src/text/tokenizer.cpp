#include "text/tokenizer.h"

#include <utility>

#include "text/rust_border.h"

namespace chorus::text {
namespace {

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
      vocabulary_size_(static_cast<int32_t>(vocabulary.tokens.size())),
      bos_id_(vocabulary.bos_id),
      eos_id_(vocabulary.eos_id),
      adds_bos_(vocabulary.add_bos),
      is_special_(vocabulary.tokens.size()) {
  for (size_t id = 0; id < vocabulary.token_types.size(); ++id) {
    const int32_t type = vocabulary.token_types[id];
    is_special_[id] = type == kControlToken || type == kUnknownToken;
  }
  chorus_text_tokenizer_pieces(handle_.get(), &piece_bytes_, &piece_ends_);
}

Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::create(const Vocabulary& vocabulary) {
  const std::vector<ChorusTextBytes> tokens = border_list(vocabulary.tokens);
  const std::vector<ChorusTextBytes> merges = border_list(vocabulary.merges);
  const ChorusTextVocabulary view{
      .model = border_bytes(vocabulary.model),
      .pre_tokenizer = border_bytes(vocabulary.pre_tokenizer),
      .tokens = tokens.data(),
      .num_tokens = tokens.size(),
      .merges = merges.data(),
      .num_merges = merges.size(),
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
  BorderError error;
  CHORUS_RETURN_IF_ERROR(error.status(chorus_text_tokenizer_create(&view, &created, error.sink())));
  return std::unique_ptr<Tokenizer>(new Tokenizer(Handle(created), vocabulary));
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text,
                                               const EncodeOptions& options) const {
  std::vector<int32_t> ids;
  const ChorusTextSink sink = border_sink(ids);
  BorderError error;
  CHORUS_RETURN_IF_ERROR(error.status(chorus_text_tokenizer_encode(
      handle_.get(), border_bytes(text), options.parse_special, options.add_special,
      options.refuse_lossy, &sink, error.sink())));
  return ids;
}

Result<std::string> Tokenizer::decode(std::span<const int32_t> ids,
                                      const DecodeOptions& options) const {
  std::string text;
  for (size_t index = 0; index < ids.size(); ++index) {
    const int32_t id = ids[index];
    if (!is_valid(id)) {
      return invalid_argument("tokens[" + std::to_string(index) + "]",
                              out_of_range(id, vocabulary_size_));
    }
    if (!options.skip_special || !is_special(id)) text += piece_of(id);
  }
  return text;
}

Result<std::string_view> Tokenizer::piece(int32_t id) const {
  if (!is_valid(id)) return invalid_argument("token", out_of_range(id, vocabulary_size_));
  return piece_of(id);
}

bool Tokenizer::is_special(int32_t id) const {
  return is_valid(id) && is_special_[static_cast<size_t>(id)];
}

std::string_view Tokenizer::piece_of(int32_t id) const {
  const uint64_t start = piece_ends_[id];
  return {piece_bytes_ + start, static_cast<size_t>(piece_ends_[id + 1] - start)};
}

}  // namespace chorus::text
