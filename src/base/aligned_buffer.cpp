#include "base/aligned_buffer.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include <utility>

#include "base/check.h"

namespace chorus {

namespace {

constexpr size_t kVectorAlignment = 64;
constexpr size_t kHugePageBytes = size_t{1} << 21;

}  // namespace

AlignedBuffer::AlignedBuffer(size_t size) { CHORUS_CHECK(allocate(size)); }

Result<AlignedBuffer> AlignedBuffer::create(size_t size) {
  AlignedBuffer buffer;
  if (!buffer.allocate(size))
    return resource_exhausted("memory", "there is no room for " + std::to_string(size) + " bytes");
  return buffer;
}

bool AlignedBuffer::allocate(size_t size) {
  if (size == 0) return true;
  void* memory = nullptr;
  const bool huge = size >= kHugePageBytes;
  if (::posix_memalign(&memory, huge ? kHugePageBytes : kVectorAlignment, size) != 0) return false;
  if (huge) (void)::madvise(memory, size, MADV_HUGEPAGE);  // a wish: the buffer works without
  std::memset(memory, 0, size);
  data_ = static_cast<std::byte*>(memory);
  size_ = size;
  return true;
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
