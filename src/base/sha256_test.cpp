#include "base/sha256.h"

#include <gtest/gtest.h>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"

namespace chorus {
namespace {

std::string hash_text(std::string_view text, Sha256::Rounds rounds) {
  Sha256 hash(rounds);
  hash.update(std::as_bytes(std::span(text)));
  return to_hex(hash.finish());
}

class Sha256Test : public ::testing::TestWithParam<Sha256::Rounds> {};

// Answers from FIPS 180-4's examples and from sha256sum.
TEST_P(Sha256Test, KnownAnswers) {
  EXPECT_EQ(hash_text("", GetParam()),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash_text("abc", GetParam()),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash_text("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", GetParam()),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hash_text(std::string(1000000, 'a'), GetParam()),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_P(Sha256Test, PiecesOfAnySizeGiveTheHashOfTheWhole) {
  RandomStream random(11);
  for (size_t size = 0; size < 300; ++size) {
    std::vector<std::byte> bytes(size);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random.below(256));
    Sha256 pieces(GetParam());
    for (std::span<const std::byte> rest = bytes; !rest.empty();) {
      const size_t taken = random.below(rest.size()) + 1;
      pieces.update(rest.first(taken));
      rest = rest.subspan(taken);
    }
    Sha256 portable(Sha256::Rounds::kPortable);
    portable.update(bytes);
    EXPECT_EQ(pieces.finish(), portable.finish()) << "size " << size;
  }
}

INSTANTIATE_TEST_SUITE_P(Rounds, Sha256Test,
                         ::testing::Values(Sha256::Rounds::kBest, Sha256::Rounds::kPortable));

}  // namespace
}  // namespace chorus
