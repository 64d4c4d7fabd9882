// A block of bytes that starts where vector loads and huge pages want it.
#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"

namespace chorus {

// Owned bytes, zero at first. Moves, does not copy; never grows. The start is 64-byte aligned; from
// 2 MiB on it is 2 MiB aligned and huge pages are asked for.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Requires: there is memory for it. Where the size is not this program's to choose, use create.
  explicit AlignedBuffer(size_t size);
  // kResourceExhausted (field memory) where there is no room.
  static Result<AlignedBuffer> create(size_t size);
  static AlignedBuffer copy_of(std::span<const std::byte> bytes);
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  ~AlignedBuffer();

  std::span<std::byte> bytes() { return {data_, size_}; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  bool allocate(size_t size);

  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace chorus
