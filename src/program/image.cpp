#include "program/image.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "base/check.h"
#include "program/limits.h"

namespace chorus {

namespace {

constexpr char kMagic[8] = {'C', 'H', 'O', 'R', 'U', 'S', '\x1a', '\n'};
constexpr size_t kVersionOffset = 8;
constexpr size_t kHeaderBytesOffset = 12;
constexpr size_t kFileBytesOffset = 16;
constexpr size_t kManifestOffsetOffset = 24;
constexpr size_t kManifestBytesOffset = 32;
constexpr size_t kReservedOffset = 40;
constexpr size_t kChecksumOffset = 64;
constexpr size_t kTailOffset = 96;

template <typename T>
T read_at(std::span<const std::byte> image, size_t offset) {
  T value;
  std::memcpy(&value, image.data() + offset, sizeof value);
  return value;
}

template <typename T>
void write_at(std::span<std::byte> image, size_t offset, T value) {
  std::memcpy(image.data() + offset, &value, sizeof value);
}

Status header_error(const char* field, uint64_t expected, uint64_t found) {
  return data_loss(std::string("header.") + field,
                   "expected " + std::to_string(expected) + ", found " + std::to_string(found));
}

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

Result<ImageHeader> read_image_header(std::span<const std::byte> image) {
  if (image.size() < kImageHeaderBytes) {
    return data_loss("header", "expected a program of at least " +
                                   std::to_string(kImageHeaderBytes) + " bytes, found " +
                                   std::to_string(image.size()));
  }
  if (std::memcmp(image.data(), kMagic, sizeof kMagic) != 0) {
    return data_loss("header.magic", "not a chorus program");
  }
  const auto version = read_at<uint32_t>(image, kVersionOffset);
  if (version != kFormatVersion) return header_error("version", kFormatVersion, version);
  const auto header_bytes = read_at<uint32_t>(image, kHeaderBytesOffset);
  if (header_bytes != kImageHeaderBytes) {
    return header_error("header_bytes", kImageHeaderBytes, header_bytes);
  }
  const auto file_bytes = read_at<uint64_t>(image, kFileBytesOffset);
  if (file_bytes != image.size()) return header_error("file_bytes", image.size(), file_bytes);
  ImageHeader header;
  header.manifest_offset = read_at<uint64_t>(image, kManifestOffsetOffset);
  header.manifest_bytes = read_at<uint64_t>(image, kManifestBytesOffset);
  if (header.manifest_offset < kImageHeaderBytes || header.manifest_offset > image.size() ||
      header.manifest_offset % 64 != 0) {
    return data_loss("header.manifest_offset", "expected a multiple of 64 inside the file, found " +
                                                   std::to_string(header.manifest_offset));
  }
  const uint64_t manifest_bytes = image.size() - header.manifest_offset;
  if (header.manifest_bytes != manifest_bytes) {
    return header_error("manifest_bytes", manifest_bytes, header.manifest_bytes);
  }
  if (manifest_bytes > kMaxManifestBytes) {
    return data_loss("header.manifest_bytes", "expected at most " +
                                                  std::to_string(kMaxManifestBytes) + ", found " +
                                                  std::to_string(manifest_bytes));
  }
  if (!all_zero(image.subspan(kReservedOffset, kChecksumOffset - kReservedOffset)) ||
      !all_zero(image.subspan(kTailOffset, kImageHeaderBytes - kTailOffset))) {
    return data_loss("header.reserved", "expected zero bytes");
  }
  std::memcpy(header.checksum.data(), image.data() + kChecksumOffset, header.checksum.size());
  return header;
}

Digest image_checksum(std::span<const std::byte> image, const ImageHeader& header) {
  Sha256 hash;
  hash.update(image.first(kChecksumOffset));
  hash.update(image.subspan(header.manifest_offset, header.manifest_bytes));
  return hash.finish();
}

void write_image_header(std::span<std::byte> image, uint64_t manifest_offset) {
  CHORUS_CHECK_LE(kImageHeaderBytes, manifest_offset);
  CHORUS_CHECK_LE(manifest_offset, image.size());
  CHORUS_CHECK_EQ(manifest_offset % 64, uint64_t{0});
  const uint64_t manifest_bytes = image.size() - manifest_offset;
  std::memset(image.data(), 0, kImageHeaderBytes);
  std::memcpy(image.data(), kMagic, sizeof kMagic);
  write_at(image, kVersionOffset, kFormatVersion);
  write_at(image, kHeaderBytesOffset, static_cast<uint32_t>(kImageHeaderBytes));
  write_at(image, kFileBytesOffset, uint64_t{image.size()});
  write_at(image, kManifestOffsetOffset, manifest_offset);
  write_at(image, kManifestBytesOffset, manifest_bytes);
  const Digest checksum = image_checksum(image, {manifest_offset, manifest_bytes, {}});
  std::memcpy(image.data() + kChecksumOffset, checksum.data(), checksum.size());
}

}  // namespace chorus
