// chorus tokenize: text to token ids and back.
#include <iostream>
#include <iterator>

#include "arguments.h"
#include "models.h"
#include "verbs.h"

namespace chorus::cli {

namespace {

struct TokenizeFlags {
  std::string model;
  std::vector<std::string> words;  // the text, or with --decode the ids
  bool ids_only = false;
  bool decode = false;
  bool special = false;
  CommonFlags common;
};

int decode(const TokenizeFlags& flags, const text::Tokenizer& tokenizer, Console& console) {
  std::vector<int32_t> ids;
  for (const std::string& word : flags.words) {
    const auto id = parse_count("--decode", word, 0, tokenizer.vocabulary_size() - 1);
    if (!id.ok()) return console.error(id.status(), kUsage);
    ids.push_back(static_cast<int32_t>(*id));
  }
  const auto bytes = tokenizer.decode(ids);
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

int encode(const TokenizeFlags& flags, const std::string& text, const text::Tokenizer& tokenizer,
           Console& console) {
  const auto ids = tokenizer.encode(text, {.parse_special = flags.special, .add_special = false});
  if (!ids.ok()) return console.error(ids.status(), kFailed);
  json::Array tokens;
  json::Array pieces;
  std::string lines;
  for (const int32_t id : *ids) {
    const std::string piece(tokenizer.piece(id).value());
    tokens.emplace_back(id);
    pieces.emplace_back(piece);
    lines += std::to_string(id);
    if (!flags.ids_only) lines += "\t" + json::Value(piece).dump();
    lines += "\n";
  }
  if (!console.json()) {
    console.text(lines);
    return kDone;
  }
  json::Value value;
  value.set("type", "tokens");
  value.set("tokens", std::move(tokens));
  if (!flags.ids_only) value.set("pieces", std::move(pieces));
  console.line(value);
  return kDone;
}

int tokenize(TokenizeFlags& flags) {
  const Status parsed = flags.common.parse();
  Console console(flags.common);
  if (!parsed.ok()) return console.error(parsed, kUsage);
  if (flags.model.empty()) {
    return console.error(invalid_argument("MODEL", "expected a .chorus program or a .gguf file"),
                         kUsage);
  }
  if (flags.decode && flags.words.empty()) {
    return console.error(invalid_argument("--decode", "expected at least one id"), kUsage);
  }
  if (!flags.decode && flags.words.size() > 1) {
    return console.error(invalid_argument(flags.words[1], "expected one TEXT; put it in quotes"),
                         kUsage);
  }
  auto program = open_program(flags.model, 0, console);
  if (!program.ok()) return program.exit_code;
  const auto text = TextModel::create(*program.value);
  if (!text.ok()) return console.error(text.status(), kBadModel);
  const text::Tokenizer& tokenizer = (*text)->tokenizer();
  if (flags.decode) return decode(flags, tokenizer, console);
  const std::string input = flags.words.empty()
                                ? std::string(std::istreambuf_iterator<char>(std::cin), {})
                                : flags.words[0];
  return encode(flags, input, tokenizer, console);
}

}  // namespace

void add_tokenize(CommandLine& line) {
  CLI::App& app = *line.app.add_subcommand("tokenize", "text to token ids and back");
  app.allow_extras();
  auto flags = std::make_shared<TokenizeFlags>();
  app.add_option("MODEL", flags->model, "a .chorus program or a .gguf file");
  app.add_option("TEXT", flags->words, "the text (default: stdin); with --decode, token ids");
  app.add_flag("--ids", flags->ids_only, "ids alone, without their pieces");
  app.add_flag("--decode", flags->decode, "the arguments are ids; prints their text");
  app.add_flag("--special", flags->special,
               "recognise special tokens such as <|im_start|> in the text");
  flags->common.declare(app);
  app.callback([&line, flags] { line.action = [flags] { return tokenize(*flags); }; });
}

}  // namespace chorus::cli
