// select_rows and the sampling policy.
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <vector>

#include "batching/sampling_policy.h"
#include "batching/sampling_state.h"
#include "batching/select_rows.h"

namespace chorus {
namespace {

using Rows = std::vector<int32_t>;

Rows select(const Rows& wanted, int32_t begin, int32_t count, int32_t minimum = 0) {
  std::vector<int32_t> scratch;
  const auto rows = select_rows(wanted, begin, count, minimum, scratch);
  return {rows.begin(), rows.end()};
}

TEST(SelectRows, NoneWantedIsNone) {
  EXPECT_EQ(select({}, 0, 8), Rows{});
  EXPECT_EQ(select({3, 9}, 4, 5), Rows{});
}

TEST(SelectRows, AllWanted) { EXPECT_EQ(select({4, 5, 6}, 4, 3), (Rows{4, 5, 6})); }

TEST(SelectRows, ABoundaryBelongsToTheLaterSlice) {
  const Rows wanted{0, 7, 8, 15, 16};
  EXPECT_EQ(select(wanted, 0, 8), (Rows{0, 7}));
  EXPECT_EQ(select(wanted, 8, 8), (Rows{8, 15}));
  EXPECT_EQ(select(wanted, 16, 1), (Rows{16}));
}

TEST(SelectRows, AMinimumIsMetWithTheLastOtherRows) {
  EXPECT_EQ(select({}, 10, 4, 1), (Rows{13}));
  EXPECT_EQ(select({13}, 10, 4, 1), (Rows{13}));
  EXPECT_EQ(select({10, 13}, 10, 4, 3), (Rows{10, 12, 13}));
  EXPECT_EQ(select({2, 40}, 10, 4, 4), (Rows{10, 11, 12, 13}));
}

std::string field_of(const Status& status) { return status.ok() ? "ok" : status.field(); }

TEST(SamplingPolicy, ChecksNameTheParameter) {
  const auto check = [](float temperature, int32_t num_likeliest, int32_t vocabulary = 1000) {
    SamplingParams params;
    params.temperature = temperature;
    params.num_likeliest = num_likeliest;
    return field_of(check_sampling(params, vocabulary));
  };
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(check(0.0f, 0), "ok");
  EXPECT_EQ(check(2.5f, kMaxLikeliest), "ok");
  EXPECT_EQ(check(-0.1f, 0), "temperature");
  EXPECT_EQ(check(infinity, 0), "temperature");
  EXPECT_EQ(check(std::numeric_limits<float>::quiet_NaN(), 0), "temperature");
  EXPECT_EQ(check(0.0f, -1), "num_likeliest");
  EXPECT_EQ(check(0.0f, kMaxLikeliest + 1), "num_likeliest");
  EXPECT_EQ(check(0.0f, 5, 5), "ok");
  EXPECT_EQ(check(0.0f, 6, 5), "num_likeliest");
}

TEST(SamplingPolicy, FiltersAreCheckedByName) {
  const auto check = [](int32_t top_k, float top_p, float min_p) {
    SamplingParams params;  // greedy: what cannot be honoured is refused all the same
    params.top_k = top_k;
    params.top_p = top_p;
    params.min_p = min_p;
    return field_of(check_sampling(params, 1000));
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(check(0, 1.0f, 0.0f), "ok");
  EXPECT_EQ(check(std::numeric_limits<int32_t>::max(), 1e-38f, 1.0f), "ok");
  EXPECT_EQ(check(-1, 1.0f, 0.0f), "top_k");
  for (const float bad : {0.0f, -0.5f, std::nextafter(1.0f, 2.0f), nan, infinity}) {
    EXPECT_EQ(check(0, bad, 0.0f), "top_p") << bad;
  }
  for (const float bad : {-0.1f, std::nextafter(1.0f, 2.0f), nan, infinity, -infinity}) {
    EXPECT_EQ(check(0, 1.0f, bad), "min_p") << bad;
  }
}

TEST(SamplingPolicy, SpecsCarryThePolicyAndTheKeyOfTheDraw) {
  SamplingParams params;
  params.temperature = 0.5f;
  params.seed = 9;
  params.choice = 2;
  params.num_likeliest = 3;
  params.top_k = 40;
  params.top_p = 0.9f;
  params.min_p = 0.05f;
  const RowSpec sampled = sampled_row(params, 4, 17, {});
  EXPECT_TRUE(sampled.sample);
  EXPECT_EQ(sampled.row, 4);
  EXPECT_EQ(sampled.position, 17);
  EXPECT_EQ(sampled.seed, 9u);
  EXPECT_EQ(sampled.choice, 2u);
  EXPECT_EQ(sampled.temperature, 0.5f);
  EXPECT_EQ(sampled.top_k, 40);
  EXPECT_EQ(sampled.top_p, 0.9f);
  EXPECT_EQ(sampled.min_p, 0.05f);
  EXPECT_EQ(sampled.num_likeliest, 3);
  EXPECT_FALSE(sampled.logprobs);
  EXPECT_EQ(sampled.given, -1);
  const RowSpec scored = scored_row(4, 33, 1);
  EXPECT_FALSE(scored.sample);
  EXPECT_EQ(scored.given, 33);
  EXPECT_EQ(scored.num_likeliest, 1);
}

class FixedMask final : public TokenConstraint {
 public:
  explicit FixedMask(uint32_t last_word) : last_word_(last_word) {}
  Status fill_mask(std::span<uint32_t> mask) override {
    mask.back() = last_word_;
    return {};
  }
  Status accept(TokenId) override { return {}; }

 private:
  uint32_t last_word_;
};

TEST(SamplingPolicy, BitsPastTheVocabularyAllowNothing) {
  EXPECT_EQ(mask_words(32), 1);
  EXPECT_EQ(mask_words(33), 2);
  std::vector<uint32_t> mask(2, 0);
  SamplingParams params;
  params.constraint = std::make_shared<FixedMask>(~1u);  // ids 33 to 63 of a vocabulary of 33
  EXPECT_EQ(SamplingState(params, 33).fill_mask(0, mask).field(), "constraint");
  params.constraint = std::make_shared<FixedMask>(~0u);
  mask.assign(2, 0);
  EXPECT_TRUE(SamplingState(params, 33).fill_mask(0, mask).ok());
  EXPECT_EQ(mask, (std::vector<uint32_t>{0, 1}));
}

}  // namespace
}  // namespace chorus
