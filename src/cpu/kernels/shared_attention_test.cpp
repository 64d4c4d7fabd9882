// Attention of tiles whose parts share chunks, and of tiles that are computed in pieces.
#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/random.h"
#include "cpu/kernels/generic.h"
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/tested_sets.h"

namespace chorus::cpu {
namespace {

// Sequences of one tile over one KV head, neighbours sharing a random number of chunks from a
// random one on; cells that nobody holds are NaN.
class SharedTile {
 public:
  SharedTile(uint64_t seed, int type) : random_(seed), type_(type) {
    constexpr int32_t kSizes[] = {1, 16, 32, 64};
    head_dim_ = static_cast<int32_t>(random_.between(1, 5)) * 8;
    layout_.block_size = kSizes[random_.below(4)];
    layout_.head_dim = head_dim_;
    layout_.block_bytes = layout_.block_size * kv_cell_bytes(type, head_dim_);
    window_ = random_.below(2) == 0 ? 0 : static_cast<int32_t>(random_.between(1, 900));
    softcap_ = random_.below(3) == 0 ? 20.0f : 0.0f;
    make_parts();
    q_.resize(static_cast<size_t>(num_queries_ * head_dim_));
    for (float& x : q_) x = static_cast<float>(random_.unit() * 4.0 - 2.0);
  }

  int32_t num_shared_chunks() const { return shared_chunks_; }

  // The outputs of all queries: parts in one call or each in its own, and all chunks at once or in
  // `pieces` that begin anywhere and are merged.
  std::vector<float> attend(const Kernels& kernels, bool together, int32_t pieces = 0) {
    store(kernels);
    std::vector<float> out(q_.size());
    std::vector<std::byte> scratch(attention_scratch_bytes(head_dim_) + 64);
    void* aligned = scratch.data();
    size_t space = scratch.size();
    std::align(64, scratch.size() - 64, aligned, space);
    std::vector<AttentionQuery> queries;
    std::vector<AttentionPart> parts;
    AttentionArgs args;
    args.layout = layout_;
    args.k = k_.data();
    args.v = v_.data();
    args.scale = 0.25f;
    args.softcap = softcap_;
    args.scratch = static_cast<std::byte*>(aligned);
    const auto run = [&] {
      args.queries = queries.data();
      args.num_queries = static_cast<int32_t>(queries.size());
      args.parts = parts.data();
      args.num_parts = static_cast<int32_t>(parts.size());
      if (pieces == 0) {
        kernels.attention[type_](args);
      } else {
        attend_in_pieces(kernels, args, pieces);
      }
      queries.clear();
      parts.clear();
    };
    int64_t at = 0;
    for (const Part& part : parts_) {
      const int32_t first_block = part.first / layout_.block_size;
      parts.push_back({part.queries, part.blocks.data() + first_block, first_block,
                       together ? part.shared_begin : 0, together ? part.shared_end : 0});
      for (int32_t i = 0; i < part.queries; ++i, at += head_dim_) {
        const int32_t last = part.length - 1 - (part.queries - 1 - i) / 2;
        queries.push_back({q_.data() + at, out.data() + at, first_seen(last), last});
      }
      if (!together) run();
    }
    if (together) run();
    return out;
  }

 private:
  // Last pieces first: they do not need each other.
  void attend_in_pieces(const Kernels& kernels, AttentionArgs args, int32_t pieces) {
    int32_t first = args.queries[0].first, last = 0;
    for (int32_t i = 0; i < args.num_queries; ++i) {
      first = std::min(first, args.queries[i].first);
      last = std::max(last, args.queries[i].last);
    }
    std::vector<int32_t> borders{first / kChunk, last / kChunk + 1};
    for (int32_t i = 1; i < pieces; ++i) {
      borders.push_back(static_cast<int32_t>(random_.between(borders[0], borders[1])));
    }
    std::sort(borders.begin(), borders.end());
    const auto each = attention_partial_floats(head_dim_) * args.num_queries;
    const int32_t chunks = borders.back() - borders.front();
    AlignedBuffer partials(static_cast<size_t>(chunks * each) * sizeof(float));
    std::memset(partials.bytes().data(), 0xff, partials.bytes().size());
    auto* floats = reinterpret_cast<float*>(partials.bytes().data());
    for (size_t i = borders.size() - 1; i > 0; --i) {
      args.chunk_begin = borders[i - 1];
      args.chunk_end = borders[i];
      args.partials = floats + (args.chunk_begin - borders.front()) * each;
      kernels.attention[type_](args);
    }
    kernels.merge_attention(
        {args.queries, args.num_queries, head_dim_, floats, chunks, args.scratch});
  }

  struct Part {
    int32_t length = 0;
    int32_t queries = 0;
    int32_t first = 0;            // position held
    std::vector<int32_t> blocks;  // from block 0; what is not held is -1
    int32_t shared_begin = 0, shared_end = 0;
  };

  int32_t first_seen(int32_t last) const {
    return window_ == 0 ? 0 : std::max(0, last - window_ + 1);
  }

  void make_parts() {
    const auto count = static_cast<int32_t>(random_.between(2, 5));
    for (int32_t i = 0; i < count; ++i) {
      Part part;
      part.queries = static_cast<int32_t>(random_.between(1, 12 / count));
      const int32_t shared = i == 0 ? 0 : (parts_.back().length - 6) / kChunk;
      const auto chunks =
          random_.below(4) == 0
              ? static_cast<int32_t>(random_.below(static_cast<uint64_t>(shared) + 1))
              : shared;
      part.length = chunks * kChunk + static_cast<int32_t>(random_.between(8, 600));
      part.first = first_seen(part.length - 1 - (part.queries - 1) / 2);
      if (chunks > 0) share(parts_.back(), chunks, part);
      const int32_t end = (part.length + layout_.block_size - 1) / layout_.block_size;
      part.blocks.resize(static_cast<size_t>(end), -1);
      for (int32_t b = part.first / layout_.block_size; b < end; ++b) {
        if (part.blocks[static_cast<size_t>(b)] < 0)
          part.blocks[static_cast<size_t>(b)] = blocks_++;
      }
      num_queries_ += part.queries;
      parts_.push_back(std::move(part));
    }
  }

  // The first `chunks` chunks lie in the blocks of the part before, as far as it holds them.
  void share(const Part& before, int32_t chunks, Part& part) {
    const int32_t first = std::max(part.first, before.first);
    part.blocks.assign(before.blocks.begin(),
                       before.blocks.begin() + chunks * kChunk / layout_.block_size);
    part.shared_begin = (first + kChunk - 1) / kChunk * kChunk;
    part.shared_end = chunks * kChunk;
    // Any chunks within may be said to be shared.
    if (random_.below(3) == 0) part.shared_begin += kChunk;
    if (part.shared_begin >= part.shared_end) part.shared_begin = part.shared_end = 0;
    shared_chunks_ += (part.shared_end - part.shared_begin) / kChunk;
  }

  void store(const Kernels& kernels) {
    layout_.head_bytes = layout_.block_bytes * blocks_;
    k_.assign(static_cast<size_t>(layout_.head_bytes), std::byte{0xff});
    v_ = k_;
    std::vector<uint8_t> is_stored(static_cast<size_t>(blocks_ * layout_.block_size));
    std::vector<float> row(static_cast<size_t>(2 * head_dim_));
    uint8_t not_finite = 0;
    for (const Part& part : parts_) {
      for (int32_t p = part.first; p < part.length; ++p) {
        const int32_t cell =
            part.blocks[static_cast<size_t>(p / layout_.block_size)] * layout_.block_size +
            p % layout_.block_size;
        if (is_stored[static_cast<size_t>(cell)]++ > 0) continue;
        RandomStream values(static_cast<uint64_t>(cell));
        for (float& x : row) x = static_cast<float>(values.unit() * 4.0 - 2.0);
        StoreKvArgs args;
        args.layout = layout_;
        args.num_heads = 1;
        args.k_arena = k_.data();
        args.v_arena = v_.data();
        args.k = row.data();
        args.v = row.data() + head_dim_;
        args.rows = 1;
        args.cells = &cell;
        args.not_finite = &not_finite;
        kernels.store_kv[type_](args);
      }
    }
    ASSERT_EQ(not_finite, 0);
  }

  RandomStream random_;
  int type_;
  int32_t head_dim_ = 0;
  int32_t window_ = 0;
  float softcap_ = 0.0f;
  KvLayout layout_;
  std::vector<Part> parts_;
  int32_t blocks_ = 0;
  int32_t num_queries_ = 0;
  int32_t shared_chunks_ = 0;
  std::vector<float> q_;
  std::vector<std::byte> k_, v_;
};

TEST(SharedAttention, HasTheBitsOfEachSequenceAlone) {
  int32_t shared_chunks = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    for (const int type : {kKvF32, kKvBf16, kKvQ8}) {
      SharedTile tile(seed, type);
      shared_chunks += tile.num_shared_chunks();
      const std::vector<float> expected = tile.attend(portable_kernels(), false);
      for (const TestedSet& set : tested_sets()) {
        if (set.name == "emulated avx512" && seed > 6) continue;  // slow
        SCOPED_TRACE("seed " + std::to_string(seed) + " type " + std::to_string(type) + " " +
                     set.name);
        for (const bool together : {false, true}) {
          const std::vector<float> out = tile.attend(*set.kernels, together);
          ASSERT_EQ(std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)), 0)
              << (together ? "together" : "alone");
        }
        const std::vector<float> merged = tile.attend(*set.kernels, true, 3);
        ASSERT_EQ(std::memcmp(merged.data(), expected.data(), merged.size() * sizeof(float)), 0)
            << "in pieces";
      }
    }
  }
  EXPECT_GT(shared_chunks, 50);
}

}  // namespace
}  // namespace chorus::cpu
