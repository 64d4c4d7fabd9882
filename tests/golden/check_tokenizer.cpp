// Compares a tokenizer with what other programs make of hostile strings.
//
// check_tokenizer STRINGS.jsonl GOLDEN.ids VOCABULARY: a .gguf file or a tokenizer.json. The golden
// file's first line may name a pre-tokenizer in place of the file's. tools/oracle/
// make_tokenizer_goldens.py writes the files and describes them.
#include <array>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "base/memory_map.h"
#include "base/sha256.h"
#include "exporter/gguf.h"
#include "exporter/lowering.h"
#include "json/value.h"
#include "program/builder.h"
#include "text/tokenizer.h"

namespace chorus {
namespace {

constexpr int kMaxShown = 10;

std::string hash_text(std::string_view text) {
  uint32_t hash = 0x811c9dc5;
  for (const char byte : text) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x01000193;
  std::array<char, 9> digits{};
  std::snprintf(digits.data(), digits.size(), "%08x", hash);
  return digits.data();
}

std::string joined(const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) text += (text.empty() ? "" : " ") + std::to_string(id);
  return text;
}

Result<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return not_found(path, "cannot be read");
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Without the line feed that ends the last one.
std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    lines.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return lines;
}

Result<text::Vocabulary> read_gguf(const std::string& path) {
  CHORUS_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::open(path));
  CHORUS_ASSIGN_OR_RETURN(const auto tokens, file.find_strings("tokenizer.ggml.tokens"));
  if (!tokens) return data_loss(path, "expected a vocabulary");
  ProgramFacts facts;
  facts.vocabulary = static_cast<int32_t>(tokens->size());
  TokenizerStorage storage;
  CHORUS_RETURN_IF_ERROR(lower_tokenizer(file, facts, storage));
  text::Vocabulary vocabulary;
  vocabulary.model = facts.tokenizer.model;
  vocabulary.pre_tokenizer = facts.tokenizer.pre;
  vocabulary.tokens.assign(facts.tokens.strings.begin(), facts.tokens.strings.end());
  vocabulary.merges.assign(facts.merges.strings.begin(), facts.merges.strings.end());
  vocabulary.scores.assign(facts.tokens.scores.begin(), facts.tokens.scores.end());
  vocabulary.token_types.assign(facts.tokens.types.begin(), facts.tokens.types.end());
  vocabulary.unknown_id = facts.tokenizer.unk;
  vocabulary.add_space_prefix = facts.tokenizer.add_space_prefix;
  return vocabulary;
}

Result<text::Vocabulary> read_vocabulary(const std::string& path) {
  if (!path.ends_with(".json")) return read_gguf(path);
  CHORUS_ASSIGN_OR_RETURN(std::string definition, read_file(path));
  return text::Vocabulary{
      .model = "huggingface", .definition = std::move(definition), .num_ids = 2000};
}

// Of the bytes of all tokens but the unused ones, in hexadecimal with a line feed after each.
std::string pieces_sha256(const text::Vocabulary& vocabulary, const text::Tokenizer& tokenizer) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string listed;
  for (int32_t id = 0; id < tokenizer.vocabulary_size(); ++id) {
    const auto index = static_cast<size_t>(id);
    const int32_t type = vocabulary.token_types[index];
    const bool says_so = vocabulary.tokens[index].find("unused") != std::string::npos;
    if (type == text::kUnusedToken || (type == text::kControlToken && says_so)) continue;
    const std::string_view piece = tokenizer.piece(id).value();
    for (const char byte : piece) {
      listed += kDigits[static_cast<uint8_t>(byte) / 16];
      listed += kDigits[static_cast<uint8_t>(byte) % 16];
    }
    listed += '\n';
  }
  return to_hex(sha256(std::as_bytes(std::span(listed))));
}

class Check {
 public:
  Check(const text::Tokenizer& tokenizer, bool is_definition)
      : tokenizer_(tokenizer), is_definition_(is_definition) {}

  void fail(const std::string& what) {
    if (++num_failures_ <= kMaxShown) std::fprintf(stderr, "%s\n", what.c_str());
  }
  void check_string(size_t number, const std::string& text, std::string_view golden);
  int num_failures() const { return num_failures_; }

 private:
  const text::Tokenizer& tokenizer_;
  bool is_definition_;
  int num_failures_ = 0;
};

void Check::check_string(size_t number, const std::string& text, std::string_view golden) {
  const std::string at = "string " + std::to_string(number) + " " + json::Value(text).dump() + ": ";
  const auto ids =
      tokenizer_.encode(text, {.parse_special = number % 2 == 1, .add_special = false});
  if (!ids.ok()) return fail(at + ids.status().to_string());
  const std::string back = *tokenizer_.decode(*ids, {.whole_text = true});
  if (golden == "!") {
    for (const int32_t id : *ids) {
      if (tokenizer_.is_special(id) && *tokenizer_.piece(id) != "<unk>") {
        return fail(at + "special tokens from text: " + joined(*ids));
      }
    }
    return;
  }
  const size_t space = golden.find(' ');
  if (hash_text(joined(*ids)) != golden.substr(0, space)) {
    return fail(at + "found the ids " + joined(*ids) + ", expected those of hash " +
                std::string(golden));
  }
  // Of llama.cpp's vocabularies the golden file says no text: there it is in the hash of all
  // pieces.
  if (!is_definition_) return;
  const std::string expected =
      space == golden.npos ? hash_text(text) : std::string(golden.substr(space + 1));
  if (hash_text(back) != expected) fail(at + "decoded to " + json::Value(back).dump());
}

Result<int> check(const std::string& strings_path, const std::string& golden_path,
                  const std::string& vocabulary_path) {
  CHORUS_ASSIGN_OR_RETURN(const std::string strings_text, read_file(strings_path));
  CHORUS_ASSIGN_OR_RETURN(const std::string golden_text, read_file(golden_path));
  const auto strings = lines_of(strings_text);
  const auto golden = lines_of(golden_text);
  if (golden.size() != strings.size() + 1 || strings.size() < 2000) {
    return data_loss(golden_path, "expected a line for each string and one before");
  }
  CHORUS_ASSIGN_OR_RETURN(const auto header, json::parse(golden[0], golden_path));
  if (header.find("strings_sha256")->as_string() !=
      to_hex(sha256(std::as_bytes(std::span(strings_text))))) {
    return data_loss(golden_path, "made for other strings");
  }
  CHORUS_ASSIGN_OR_RETURN(text::Vocabulary vocabulary, read_vocabulary(vocabulary_path));
  if (const auto* pre = header.find("pre")) vocabulary.pre_tokenizer = pre->as_string();
  CHORUS_ASSIGN_OR_RETURN(const auto tokenizer, text::Tokenizer::create(vocabulary));
  Check result(*tokenizer, !vocabulary.definition.empty());
  if (const auto* expected = header.find("pieces_sha256")) {
    if (pieces_sha256(vocabulary, *tokenizer) != expected->as_string()) {
      result.fail("the bytes of the tokens are not those of the golden file");
    }
  }
  for (size_t number = 0; number < strings.size(); ++number) {
    CHORUS_ASSIGN_OR_RETURN(const auto text, json::parse(strings[number], strings_path));
    result.check_string(number, text.as_string(), golden[number + 1]);
  }
  std::printf("%zu strings, %d failures\n", strings.size(), result.num_failures());
  return result.num_failures();
}

}  // namespace
}  // namespace chorus

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: check_tokenizer STRINGS.jsonl GOLDEN.ids VOCABULARY\n");
    return 2;
  }
  const auto failures = chorus::check(argv[1], argv[2], argv[3]);
  if (!failures.ok()) std::fprintf(stderr, "%s\n", failures.status().to_string().c_str());
  return failures.ok() && *failures == 0 ? 0 : 1;
}
