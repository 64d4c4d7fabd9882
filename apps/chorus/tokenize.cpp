// chorus tokenize: text to token ids and back.
#include "arguments.h"
#include "models.h"
#include "prompts.h"
#include "verbs.h"

namespace chorus::cli {

namespace {

class TokenizeVerb final : public Verb {
 public:
  TokenizeVerb() : Verb("tokenize", "text to token ids and back") {}
  void declare(CommandLine& line) override;
  Status parse() override;
  int run(Console& console, Interrupt& interrupt) override;

 private:
  int decode(const text::Tokenizer& tokenizer, Console& console) const;
  int encode(const std::string& text, const text::Tokenizer& tokenizer, Console& console) const;

  std::string model_;
  std::vector<std::string> words_;  // the text, or with --decode the ids
  bool ids_only_ = false;
  bool decodes_ = false;
  bool special_ = false;
};

void TokenizeVerb::declare(CommandLine& line) {
  line.argument("MODEL", model_, kModelKinds);
  line.rest("TEXT", words_, "[TEXT | --decode ID...]",
            "the text (default: stdin); with --decode, token ids");
  line.group("Tokens");
  line.flag("--ids", ids_only_, "ids alone, without their pieces");
  line.flag("--decode", decodes_, "the arguments are ids; prints their text");
  line.flag("--special", special_, "recognise special tokens such as <|im_start|> in the text");
}

Status TokenizeVerb::parse() {
  if (decodes_ && words_.empty()) return invalid_argument("--decode", "expected at least one id");
  if (!decodes_ && words_.size() > 1) {
    return invalid_argument(words_[1], "expected one TEXT; put it in quotes");
  }
  return Status();
}

int TokenizeVerb::decode(const text::Tokenizer& tokenizer, Console& console) const {
  std::vector<int32_t> ids;
  for (const std::string& word : words_) {
    const auto id = parse_count("--decode", word, 0, tokenizer.vocabulary_size() - 1);
    if (!id.ok()) return console.error(id.status(), kUsage);
    ids.push_back(static_cast<int32_t>(*id));
  }
  const auto bytes = tokenizer.decode(ids, {.whole_text = true});
  if (!bytes.ok()) return console.error(bytes.status(), kUsage);
  if (!console.json()) {
    console.text(*bytes);
    return kDone;
  }
  json::Value value;
  value.set("type", "text");
  value.set("tokens", json::Array(ids.begin(), ids.end()));
  value.set("text", *bytes);
  console.line(value);
  return kDone;
}

int TokenizeVerb::encode(const std::string& text, const text::Tokenizer& tokenizer,
                         Console& console) const {
  const auto ids = tokenizer.encode(text, {.parse_special = special_, .add_special = false});
  if (!ids.ok()) return console.error(ids.status(), kFailed);
  json::Array tokens;
  json::Array pieces;
  std::string lines;
  for (const int32_t id : *ids) {
    const std::string piece(tokenizer.piece(id).value());
    tokens.emplace_back(id);
    pieces.emplace_back(piece);
    lines += std::to_string(id);
    if (!ids_only_) lines += "\t" + json::Value(piece).dump();
    lines += "\n";
  }
  if (!console.json()) {
    console.text(lines);
    return kDone;
  }
  json::Value value;
  value.set("type", "tokens");
  value.set("tokens", std::move(tokens));
  if (!ids_only_) value.set("pieces", std::move(pieces));
  console.line(value);
  return kDone;
}

int TokenizeVerb::run(Console& console, Interrupt& /*interrupt*/) {
  auto program = open_program(model_, 0, console);
  if (!program.ok()) return program.exit_code;
  const auto text = TextModel::create(*program.value);
  if (!text.ok()) return console.error(text.status(), kBadModel);
  const text::Tokenizer& tokenizer = (*text)->tokenizer();
  if (decodes_) return decode(tokenizer, console);
  const auto input = words_.empty() ? read_input("-") : Result<std::string>(words_[0]);
  if (!input.ok()) return console.error(input.status(), kFailed);
  return encode(*input, tokenizer, console);
}

}  // namespace

std::unique_ptr<Verb> make_tokenize() { return std::make_unique<TokenizeVerb>(); }

}  // namespace chorus::cli
