// Speed of the prefix index: lookups, and sequences made of what they find.
//
//   prefix_bench [--tiny]
//
// The index holds 100,000 blocks of 16 tokens in 1,000 prompts that share their first 256 tokens,
// put there by steps as an engine would. Times are the median of many calls, in random order.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "kv/books.h"

namespace chorus {
namespace {

using Tokens = std::vector<int32_t>;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

constexpr int32_t kBlockSize = 16;
constexpr int32_t kSharedBlocks = 16;

struct Shape {
  int32_t num_prompts = 1000;
  int32_t own_blocks = 100;  // of a prompt, behind the shared ones
  int32_t num_calls = 20000;
};

Tokens prompt_tokens(const Shape& shape, int32_t prompt) {
  RandomStream shared(1);
  RandomStream own(static_cast<uint64_t>(prompt) + 2);
  Tokens tokens;
  for (int32_t i = 0; i < (kSharedBlocks + shape.own_blocks) * kBlockSize; ++i) {
    RandomStream& random = i < kSharedBlocks * kBlockSize ? shared : own;
    tokens.push_back(static_cast<int32_t>(random.below(50000)));
  }
  return tokens;
}

void run(const Shape& shape) {
  const int32_t length = (kSharedBlocks + shape.own_blocks) * kBlockSize;
  const int32_t num_blocks = shape.num_prompts * shape.own_blocks + 2 * kSharedBlocks;
  const auto books = std::move(KvBooks::create({kBlockSize, length, {{{}, num_blocks}}})).value();
  std::vector<Tokens> prompts;
  KvPlan plan;
  for (int32_t i = 0; i < shape.num_prompts; ++i) prompts.push_back(prompt_tokens(shape, i));
  const double start = seconds_now();
  for (const Tokens& prompt : prompts) {
    const SequenceId sequence = books->open_prefix("model", prompt, length);
    const Position at = books->length(sequence);
    const std::vector<KvDemand> demands{{sequence, at, length - at}};
    CHORUS_CHECK(books->plan(demands, plan));
    const std::vector<KvRows> rows{{std::span(prompt).subspan(static_cast<size_t>(at))}};
    books->commit(plan, std::vector<Position>{length}, rows);
    books->close(sequence);
  }
  const double fill = seconds_now() - start;
  const int64_t nodes = books->prefix_index().num_nodes();
  std::printf("%lld blocks in the index, put there in %.1f ns a block\n",
              static_cast<long long>(nodes - 1), fill / static_cast<double>(nodes) * 1e9);

  RandomStream random(3);
  std::vector<double> hits;
  std::vector<double> misses;
  std::vector<double> attached;
  for (int32_t i = 0; i < shape.num_calls; ++i) {
    const auto which = static_cast<size_t>(random.below(prompts.size()));
    double begin = seconds_now();
    const Position found = books->longest_prefix("model", prompts[which], length - 1);
    hits.push_back(seconds_now() - begin);
    CHORUS_CHECK_EQ(found, length - 1);
    Tokens other = prompts[which];
    other[kSharedBlocks * kBlockSize] = -1;
    begin = seconds_now();
    CHORUS_CHECK_EQ(books->longest_prefix("model", other, length - 1), kSharedBlocks * kBlockSize);
    misses.push_back(seconds_now() - begin);
    begin = seconds_now();
    const SequenceId sequence = books->open_prefix("model", prompts[which], length - 1);
    attached.push_back(seconds_now() - begin);
    books->close(sequence);
  }
  const int32_t path = kSharedBlocks + shape.own_blocks;
  std::printf("lookup of %d blocks: %.2f us, %.1f ns a block\n", path, median(hits) * 1e6,
              median(hits) / path * 1e9);
  std::printf("lookup that ends after %d blocks: %.2f us\n", kSharedBlocks, median(misses) * 1e6);
  std::printf("a sequence made of %d blocks: %.2f us\n", path, median(attached) * 1e6);
}

}  // namespace
}  // namespace chorus

int main(int argc, char** argv) {
  chorus::Shape shape;
  if (argc == 2 && std::strcmp(argv[1], "--tiny") == 0) {
    shape = {20, 5, 50};
  } else if (argc != 1) {
    std::fprintf(stderr, "usage: prefix_bench [--tiny]\n");
    return 2;
  }
  chorus::run(shape);
}
