#include "program/strings.h"

#include <cstring>
#include <string>

#include "base/check.h"
#include "program/limits.h"

namespace chorus {

namespace {

constexpr uint32_t kHasScores = 1;
constexpr uint32_t kHasTypes = 2;
constexpr size_t kCountAndFlags = 8;

// Copies `size` bytes to `at` and moves it on.
void write(std::byte*& at, const void* bytes, size_t size) {
  if (size > 0) std::memcpy(at, bytes, size);
  at += size;
}

}  // namespace

std::vector<std::byte> encode_strings(const StringList& list) {
  const size_t count = list.strings.size();
  CHORUS_CHECK(list.scores.empty() || list.scores.size() == count);
  CHORUS_CHECK(list.types.empty() || list.types.size() == count);
  const uint32_t head[2] = {static_cast<uint32_t>(count), (list.scores.empty() ? 0 : kHasScores) |
                                                              (list.types.empty() ? 0 : kHasTypes)};
  std::vector<uint32_t> offsets{0};
  uint64_t total = 0;
  for (const std::string_view string : list.strings) {
    total += string.size();
    CHORUS_CHECK_LE(total, kMaxTokenBytes);
    offsets.push_back(static_cast<uint32_t>(total));
  }
  std::vector<std::byte> bytes(sizeof head + offsets.size() * sizeof(uint32_t) +
                               list.scores.size_bytes() + list.types.size_bytes() + total);
  std::byte* at = bytes.data();
  write(at, head, sizeof head);
  write(at, offsets.data(), offsets.size() * sizeof(uint32_t));
  write(at, list.scores.data(), list.scores.size_bytes());
  write(at, list.types.data(), list.types.size_bytes());
  for (const std::string_view string : list.strings) write(at, string.data(), string.size());
  return bytes;
}

Result<StringList> decode_strings(std::span<const std::byte> bytes, uint32_t max_count) {
  StringList list;
  if (bytes.empty()) return list;
  if (bytes.size() < kCountAndFlags) return data_loss("count", "the segment is too short");
  uint32_t head[2];
  std::memcpy(head, bytes.data(), sizeof head);
  const uint64_t count = head[0];
  if (count > max_count) {
    return data_loss("count", "expected at most " + std::to_string(max_count) + ", found " +
                                  std::to_string(count));
  }
  if ((head[1] & ~(kHasScores | kHasTypes)) != 0) {
    return data_loss("flags", "expected at most 3, found " + std::to_string(head[1]));
  }
  const uint64_t score_bytes = (head[1] & kHasScores) != 0 ? 4 * count : 0;
  const uint64_t type_bytes = (head[1] & kHasTypes) != 0 ? count : 0;
  const uint64_t offset_bytes = 4 * (count + 1);
  const uint64_t fixed = kCountAndFlags + offset_bytes + score_bytes + type_bytes;
  if (bytes.size() < fixed) return data_loss("count", "the segment is too short");
  const auto* offsets = reinterpret_cast<const uint32_t*>(bytes.data() + kCountAndFlags);
  const std::byte* after = bytes.data() + kCountAndFlags + offset_bytes;
  if (score_bytes > 0) list.scores = {reinterpret_cast<const float*>(after), count};
  if (type_bytes > 0) {
    list.types = {reinterpret_cast<const uint8_t*>(after + score_bytes), count};
  }
  const auto* text = reinterpret_cast<const char*>(bytes.data() + fixed);
  if (offsets[0] != 0) return data_loss("offsets", "expected 0 first");
  if (offsets[count] != bytes.size() - fixed || offsets[count] > kMaxTokenBytes) {
    return data_loss("bytes", "expected " + std::to_string(offsets[count]) + " bytes, found " +
                                  std::to_string(bytes.size() - fixed));
  }
  list.strings.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    if (offsets[i + 1] < offsets[i] || offsets[i + 1] > offsets[count]) {
      return data_loss("offsets", "expected ascending offsets, found " +
                                      std::to_string(offsets[i + 1]) + " after " +
                                      std::to_string(offsets[i]));
    }
    list.strings.emplace_back(text + offsets[i], offsets[i + 1] - offsets[i]);
  }
  return list;
}

}  // namespace chorus
