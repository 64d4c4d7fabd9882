// The outermost layer of a program file: a fixed header that says where the manifest lies and holds
// the checksum of both.
//
// Layout, little endian: 128 bytes of header; segments at multiples of 64, in any order, with fewer
// than 64 zero bytes between one and the next; the manifest, from a multiple of 64 to the end of
// the file. Header:
//   0  8  magic "CHORUS\x1a\n"          32  8  bytes of the manifest
//   8  4  format version, 1             40 24  zero
//  12  4  bytes of the header, 128      64 32  SHA-256 of bytes 0..63 and the manifest
//  16  8  bytes of the file             96 32  zero
//  24  8  offset of the manifest
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "base/sha256.h"

namespace chorus {

inline constexpr uint32_t kFormatVersion = 1;
inline constexpr uint64_t kImageHeaderBytes = 128;

struct ImageHeader {
  uint64_t manifest_offset = 0;
  uint64_t manifest_bytes = 0;
  Digest checksum{};
};

constexpr uint64_t align_segment(uint64_t offset) { return (offset + 63) / 64 * 64; }

// Checks everything about the header but the checksum. Errors: kDataLoss, field "header.NAME".
Result<ImageHeader> read_image_header(std::span<const std::byte> image);

// The checksum that belongs into `image`. Requires: read_image_header gave `header` for it.
Digest image_checksum(std::span<const std::byte> image, const ImageHeader& header);

// Writes the header for a manifest that already stands at the end of `image`, checksum included.
// Requires: kImageHeaderBytes <= manifest_offset <= image.size(), a multiple of 64.
void write_image_header(std::span<std::byte> image, uint64_t manifest_offset);

}  // namespace chorus
