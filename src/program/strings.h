// Lists of byte strings as segments: how a program carries its vocabulary and merges.
//
// A list is: u32 count, u32 flags, u32 offsets[count + 1] into the bytes, then for flag 1 (scores)
// f32 scores[count], for flag 2 (types) u8 types[count], then the bytes, up to the end of the
// segment. Little endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace chorus {

// Strings with, for each, an optional score and type. Views: the storage is somebody else's.
struct StringList {
  std::vector<std::string_view> strings;
  std::span<const float> scores;   // one per string, or empty
  std::span<const uint8_t> types;  // one per string, or empty
};

// Requires: fewer than 2^31 strings and kMaxTokenBytes bytes of strings.
std::vector<std::byte> encode_strings(const StringList& list);

// Requires: `bytes` starts at a multiple of 4 and outlives the list. No bytes: an empty list.
// Errors: kDataLoss, field "count", "flags", "offsets" or "bytes".
Result<StringList> decode_strings(std::span<const std::byte> bytes, uint32_t max_count);

}  // namespace chorus
