#include "base/aligned_buffer.h"

#include <cstdint>
#include <gtest/gtest.h>
#include <utility>

namespace chorus {
namespace {

TEST(AlignedBuffer, IsAlignedAndZero) {
  for (const size_t size : {size_t{1}, size_t{65}, size_t{5} << 20}) {
    const AlignedBuffer buffer(size);
    ASSERT_EQ(buffer.bytes().size(), size);
    const auto address = reinterpret_cast<uintptr_t>(buffer.bytes().data());
    EXPECT_EQ(address % (size < (size_t{1} << 21) ? 64 : size_t{1} << 21), 0u);
    for (const std::byte byte : buffer.bytes()) ASSERT_EQ(byte, std::byte{0});
  }
}

TEST(AlignedBuffer, MovesKeepTheAddress) {
  const std::byte source[] = {std::byte{1}, std::byte{2}, std::byte{3}};
  AlignedBuffer first = AlignedBuffer::copy_of(source);
  const std::byte* data = first.bytes().data();
  AlignedBuffer second = std::move(first);
  EXPECT_EQ(second.bytes().data(), data);
  EXPECT_EQ(second.bytes()[2], std::byte{3});
  AlignedBuffer third;
  third = std::move(second);
  EXPECT_EQ(third.bytes().data(), data);
  EXPECT_TRUE(AlignedBuffer().bytes().empty());
}

}  // namespace
}  // namespace chorus
