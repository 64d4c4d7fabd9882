#include "program/program.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "program/check_graph.h"
#include "program/image.h"
#include "program/limits.h"
#include "program/names.h"
#include "program/strings.h"

namespace chorus {

namespace {

constexpr uint8_t kLastTokenType = 6;

Status check_hash(std::span<const std::byte> bytes, const Digest& expected, std::string field) {
  if (bytes.empty()) return Status();
  const Digest found = sha256(bytes);
  if (found == expected) return Status();
  return data_loss(std::move(field),
                   "expected hash " + to_hex(expected) + ", found " + to_hex(found));
}

Status check_tokenizer(const TokenizerData& tokenizer, int32_t vocabulary) {
  if (tokenizer.facts.model.empty()) {
    if (!tokenizer.tokens.empty() || !tokenizer.merges.empty() || !tokenizer.definition.empty()) {
      return data_loss("tokenizer.model", "expected a name beside tokens, found none");
    }
    return Status();
  }
  const bool is_defined = tokenizer.facts.model == kDefinedTokenizer;
  if (is_defined == tokenizer.definition.empty()) {
    return data_loss("tokenizer.definition", "expected one with model huggingface alone");
  }
  if (is_defined) {
    if (tokenizer.tokens.empty() && tokenizer.merges.empty()) return Status();
    return data_loss("tokenizer.vocabulary", "expected none beside a definition");
  }
  if (tokenizer.tokens.size() != static_cast<size_t>(vocabulary)) {
    return data_loss("tokenizer.vocabulary", "expected " + std::to_string(vocabulary) +
                                                 " tokens, found " +
                                                 std::to_string(tokenizer.tokens.size()));
  }
  for (const uint8_t type : tokenizer.types) {
    if (type > kLastTokenType) {
      return data_loss("tokenizer.vocabulary.types",
                       "expected at most 6, found " + std::to_string(type));
    }
  }
  for (const float score : tokenizer.scores) {
    if (std::isnan(score)) return data_loss("tokenizer.vocabulary.scores", "found a NaN");
  }
  return Status();
}

}  // namespace

Result<Program> Program::load(const std::string& path) {
  CHORUS_ASSIGN_OR_RETURN(MemoryMap map, MemoryMap::open(path));
  Program program;
  program.map_ = std::move(map);
  program.image_ = program.map_.bytes();
  CHORUS_RETURN_IF_ERROR(program.parse());
  return program;
}

Result<Program> Program::from_bytes(AlignedBuffer image) {
  Program program;
  program.buffer_ = std::move(image);
  program.image_ = std::as_const(program.buffer_).bytes();
  CHORUS_RETURN_IF_ERROR(program.parse());
  return program;
}

Status Program::parse() {
  CHORUS_ASSIGN_OR_RETURN(const ImageHeader header, read_image_header(image_));
  if (image_checksum(image_, header) != header.checksum) {
    return data_loss("header.checksum", "the manifest does not match it: the file is damaged");
  }
  content_ = header.checksum;
  CHORUS_ASSIGN_OR_RETURN(
      manifest_, decode_manifest(image_.subspan(header.manifest_offset, header.manifest_bytes)));
  CHORUS_RETURN_IF_ERROR(check_manifest(manifest_, kImageHeaderBytes, header.manifest_offset));
  CHORUS_RETURN_IF_ERROR(check_graph(manifest_.graph, manifest_.weights, manifest_.vocabulary));
  CHORUS_RETURN_IF_ERROR(check_padding(header.manifest_offset));
  CHORUS_RETURN_IF_ERROR(read_text_segments());
  kv_identity_ = chorus::kv_identity(manifest_);
  return Status();
}

// Every byte that is neither header, manifest nor segment is zero: a change anywhere is noticed.
Status Program::check_padding(uint64_t manifest_offset) const {
  std::vector<Segment> segments = segments_in_order(manifest_);
  segments.push_back({manifest_offset, 0, {}});
  uint64_t end = kImageHeaderBytes;
  for (const Segment& segment : segments) {
    for (; end < segment.offset; ++end) {
      if (image_[end] != std::byte{0}) {
        return data_loss("padding",
                         "expected a zero byte at offset " + std::to_string(end) + " of the file");
      }
    }
    end = segment.offset + segment.bytes;
  }
  return Status();
}

Status Program::read_text_segments() {
  const auto bytes_of = [this](const Segment& segment) {
    return image_.subspan(segment.offset, segment.bytes);
  };
  const auto tokens = bytes_of(manifest_.tokens);
  const auto merges = bytes_of(manifest_.merges);
  const auto definition = bytes_of(manifest_.definition);
  const auto chat_template = bytes_of(manifest_.chat_template);
  CHORUS_RETURN_IF_ERROR(check_hash(tokens, manifest_.tokens.sha256, "tokenizer.vocabulary"));
  CHORUS_RETURN_IF_ERROR(check_hash(merges, manifest_.merges.sha256, "tokenizer.merges"));
  CHORUS_RETURN_IF_ERROR(
      check_hash(definition, manifest_.definition.sha256, "tokenizer.definition"));
  CHORUS_RETURN_IF_ERROR(
      check_hash(chat_template, manifest_.chat_template.sha256, "chat_template"));

  auto token_list = decode_strings(tokens, static_cast<uint32_t>(kMaxVocabulary));
  if (!token_list.ok()) return token_list.status().within("tokenizer.vocabulary");
  auto merge_list = decode_strings(merges, kMaxMerges);
  if (!merge_list.ok()) return merge_list.status().within("tokenizer.merges");
  tokenizer_.facts = manifest_.tokenizer;
  tokenizer_.tokens = std::move(token_list->strings);
  tokenizer_.types = token_list->types;
  tokenizer_.scores = token_list->scores;
  tokenizer_.merges = std::move(merge_list->strings);
  tokenizer_.definition = {reinterpret_cast<const char*>(definition.data()), definition.size()};
  CHORUS_RETURN_IF_ERROR(check_tokenizer(tokenizer_, manifest_.vocabulary));

  chat_template_ = {reinterpret_cast<const char*>(chat_template.data()), chat_template.size()};
  if (!is_printable_utf8(chat_template_)) {
    return data_loss("chat_template", "expected UTF-8 without control characters");
  }
  return Status();
}

std::span<const std::byte> Program::weight_bytes(WeightId weight) const {
  CHORUS_CHECK(weight >= 0 && static_cast<size_t>(weight) < manifest_.weights.size());
  const Weight& entry = manifest_.weights[static_cast<size_t>(weight)];
  return image_.subspan(entry.offset, entry.bytes);
}

const Digest& Program::weight_hash(WeightId weight) const {
  CHORUS_CHECK(weight >= 0 && static_cast<size_t>(weight) < manifest_.weight_hashes.size());
  return manifest_.weight_hashes[static_cast<size_t>(weight)];
}

Status Program::verify_weights() const {
  for (size_t i = 0; i < manifest_.weights.size(); ++i) {
    const auto bytes = weight_bytes(static_cast<WeightId>(i));
    CHORUS_RETURN_IF_ERROR(check_hash(bytes, manifest_.weight_hashes[i],
                                      "weights[" + manifest_.weights[i].name + "]"));
  }
  return Status();
}

}  // namespace chorus
