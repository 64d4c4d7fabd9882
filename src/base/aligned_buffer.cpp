#include "base/aligned_buffer.h"

#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <utility>

#include "base/check.h"

namespace chorus {

namespace {

constexpr size_t kVectorAlignment = 64;
constexpr size_t kHugePageBytes = size_t{1} << 21;

}  // namespace

AlignedBuffer::AlignedBuffer(size_t size) : size_(size) {
  if (size == 0) return;
  void* memory = nullptr;
  const bool huge = size >= kHugePageBytes;
  const int error = ::posix_memalign(&memory, huge ? kHugePageBytes : kVectorAlignment, size);
  CHORUS_CHECK_EQ(error, 0);
  if (huge) (void)::madvise(memory, size, MADV_HUGEPAGE);  // a wish: the buffer works without
  std::memset(memory, 0, size);
  data_ = static_cast<std::byte*>(memory);
}

AlignedBuffer AlignedBuffer::copy_of(std::span<const std::byte> bytes) {
  AlignedBuffer buffer(bytes.size());
  if (!bytes.empty()) std::memcpy(buffer.data_, bytes.data(), bytes.size());
  return buffer;
}

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

AlignedBuffer::~AlignedBuffer() { std::free(data_); }

}  // namespace chorus
