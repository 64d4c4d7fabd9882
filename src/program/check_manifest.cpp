#include <algorithm>
#include <string>
#include <string_view>
#include <tuple>

#include "program/image.h"
#include "program/limits.h"
#include "program/manifest.h"
#include "program/names.h"
#include "program/packing/r16k4.h"

namespace chorus {

namespace {

// Ok when low <= value <= high.
Status check_range(std::string field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return Status();
  return data_loss(std::move(field), "expected " + std::to_string(low) + " to " +
                                         std::to_string(high) + ", found " + std::to_string(value));
}

Status check_text(std::string field, std::string_view text) {
  if (is_printable_utf8(text)) return Status();
  return data_loss(std::move(field), "expected UTF-8 without control characters");
}

Status check_weight(const Weight& weight) {
  CHORUS_RETURN_IF_ERROR(check_text("name", weight.name));
  CHORUS_RETURN_IF_ERROR(check_range("rows", weight.rows, 1, kMaxWidth));
  CHORUS_RETURN_IF_ERROR(check_range("columns", weight.columns, 1, kMaxWidth));
  std::optional<uint64_t> bytes;
  if (weight.packing == Packing::kRowMajor) {
    if (weight.type != WeightType::kF32) {
      return data_loss("type", "expected F32 in row_major, found " + shown_type_name(weight.type));
    }
    bytes = canonical_bytes(weight.type, weight.rows, weight.columns);
  } else {
    bytes = packed_bytes(weight.type, weight.rows, weight.columns);
  }
  if (weight.packing_version != kR16K4Version) {
    return data_loss("packing_version", "expected " + std::to_string(kR16K4Version) + ", found " +
                                            std::to_string(weight.packing_version));
  }
  if (!bytes) {
    return data_loss("columns", "expected a multiple of " +
                                    std::to_string(column_multiple(weight.type)) + " for " +
                                    shown_type_name(weight.type) + ", found " +
                                    std::to_string(weight.columns));
  }
  if (weight.bytes != *bytes) {
    return data_loss(
        "bytes", "expected " + std::to_string(*bytes) + " for " + std::to_string(weight.rows) +
                     " x " + std::to_string(weight.columns) + " " + shown_type_name(weight.type) +
                     ", found " + std::to_string(weight.bytes));
  }
  return Status();
}

// A segment of `limit` bytes at most, or none at all.
Status check_text_segment(std::string field, const Segment& segment, uint64_t limit) {
  if (segment.bytes == 0 && segment.offset == 0 && segment.sha256 == Digest{}) return Status();
  if (segment.bytes > 0 && segment.bytes <= limit) return Status();
  return data_loss(std::move(field), "expected 1 to " + std::to_string(limit) + " bytes, found " +
                                         std::to_string(segment.bytes));
}

Status check_tokenizer_facts(const Manifest& manifest) {
  const TokenizerFacts& facts = manifest.tokenizer;
  CHORUS_RETURN_IF_ERROR(check_text("tokenizer.model", facts.model));
  CHORUS_RETURN_IF_ERROR(check_text("tokenizer.pre", facts.pre));
  const int64_t last = int64_t{manifest.vocabulary} - 1;
  const std::pair<const char*, int32_t> ids[] = {{"bos", facts.bos},
                                                 {"eos", facts.eos},
                                                 {"eot", facts.eot},
                                                 {"pad", facts.pad},
                                                 {"unk", facts.unk}};
  for (const auto& [name, id] : ids) {
    CHORUS_RETURN_IF_ERROR(check_range(std::string("tokenizer.") + name, id, -1, last));
  }
  for (size_t i = 0; i < facts.end_ids.size(); ++i) {
    CHORUS_RETURN_IF_ERROR(
        check_range("tokenizer.end_ids[" + std::to_string(i) + "]", facts.end_ids[i], 0, last));
  }
  if (facts.add_bos && facts.bos < 0) return data_loss("tokenizer.bos", "expected an id, found -1");
  if (facts.add_eos && facts.eos < 0) return data_loss("tokenizer.eos", "expected an id, found -1");
  // 12 bytes a string (offset, score, type) besides the strings themselves.
  const uint64_t overhead = 12 * (uint64_t{static_cast<uint32_t>(manifest.vocabulary)} + 2);
  CHORUS_RETURN_IF_ERROR(
      check_text_segment("tokenizer.vocabulary", manifest.tokens, kMaxTokenBytes + overhead));
  CHORUS_RETURN_IF_ERROR(check_text_segment("tokenizer.merges", manifest.merges,
                                            kMaxTokenBytes + uint64_t{12} * kMaxMerges));
  CHORUS_RETURN_IF_ERROR(
      check_text_segment("tokenizer.definition", manifest.definition, kMaxDefinitionBytes));
  return check_text_segment("chat_template", manifest.chat_template, kMaxTemplateBytes);
}

Status check_segments(const Manifest& manifest, uint64_t begin, uint64_t end) {
  uint64_t previous = begin;
  for (const Segment& segment : segments_in_order(manifest)) {
    const std::string at = "the segment of " + std::to_string(segment.bytes) + " bytes at " +
                           std::to_string(segment.offset);
    if (segment.offset % kSegmentAlignment != 0) {
      return data_loss("segments", at + " does not start at a multiple of 64");
    }
    if (segment.offset < previous) {
      return data_loss("segments", at + " overlaps what ends at " + std::to_string(previous));
    }
    if (segment.offset - previous >= kSegmentAlignment) {
      return data_loss("segments", at + " leaves a gap from " + std::to_string(previous));
    }
    if (segment.offset > end || segment.bytes > end - segment.offset) {
      return data_loss("segments", at + " ends after " + std::to_string(end));
    }
    previous = segment.offset + segment.bytes;
  }
  if (end - previous < kSegmentAlignment) return Status();
  return data_loss("segments", "expected the last to end at " + std::to_string(end) + ", found " +
                                   std::to_string(previous));
}

}  // namespace

std::vector<Segment> segments_in_order(const Manifest& manifest) {
  std::vector<Segment> segments;
  for (const Weight& weight : manifest.weights) {
    segments.push_back({weight.offset, weight.bytes, {}});
  }
  for (const Segment* segment :
       {&manifest.tokens, &manifest.merges, &manifest.definition, &manifest.chat_template}) {
    if (segment->bytes > 0) segments.push_back(*segment);
  }
  std::sort(segments.begin(), segments.end(), [](const Segment& a, const Segment& b) {
    return std::tie(a.offset, a.bytes) < std::tie(b.offset, b.bytes);
  });
  return segments;
}

Status check_manifest(const Manifest& manifest, uint64_t begin, uint64_t end) {
  CHORUS_RETURN_IF_ERROR(check_range("numerics_version", manifest.numerics_version,
                                     kNumericsVersion, kNumericsVersion));
  CHORUS_RETURN_IF_ERROR(check_text("architecture", manifest.architecture));
  CHORUS_RETURN_IF_ERROR(check_text("name", manifest.name));
  CHORUS_RETURN_IF_ERROR(check_range("context", manifest.context, 1, kMaxContext));
  CHORUS_RETURN_IF_ERROR(check_range("vocabulary", manifest.vocabulary, 1, kMaxVocabulary));
  CHORUS_RETURN_IF_ERROR(check_methods(manifest.methods));
  for (size_t i = 0; i < manifest.weights.size(); ++i) {
    const Status status = check_weight(manifest.weights[i]);
    if (!status.ok()) return status.within("weights[" + std::to_string(i) + "]");
  }
  CHORUS_RETURN_IF_ERROR(check_tokenizer_facts(manifest));
  return check_segments(manifest, begin, end);
}

}  // namespace chorus
