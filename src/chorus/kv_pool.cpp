#include "chorus/kv_pool.h"

#include <algorithm>
#include <limits>
#include <string>

namespace chorus {

namespace {

class Sizes {
 public:
  Sizes(std::span<const KvGroupSize> groups, const KvPoolWish& wish)
      : groups_(groups), wish_(wish) {
    for (const KvGroupSize& group : groups) {
      bytes_per_token_ += group.bytes_per_token;
      is_windowed_ |= group.policy.window > 0;
    }
    size_.context = wish.context > 0 ? wish.context : wish.model_context;
  }

  Result<KvPoolSize> choose() {
    if (size_.context > wish_.model_context) {
      return invalid_argument("context", "expected at most the model's " +
                                             std::to_string(wish_.model_context) + ", found " +
                                             std::to_string(size_.context));
    }
    choose_block_size();
    // Cells are numbered by int32_t.
    const int64_t most = std::numeric_limits<int32_t>::max() / size_.block_size;
    if (wish_.blocks > most) {
      return invalid_argument("kv_blocks", "expected at most " + std::to_string(most) + ", found " +
                                               std::to_string(wish_.blocks));
    }
    const int64_t blocks = wish_.blocks > 0 ? wish_.blocks : affordable(std::min(most, useful()));
    CHORUS_RETURN_IF_ERROR(check_room(blocks));
    size_.context = static_cast<int32_t>(std::min<int64_t>(size_.context, tokens_held(blocks)));
    for (const KvGroupSize& group : groups_) {
      size_.blocks.push_back(static_cast<int32_t>(blocks_of(group, blocks)));
    }
    size_.bytes = bytes_of(blocks);
    return std::move(size_);
  }

 private:
  bool is_sequence() const { return wish_.layout == KvLayout::kSequence; }
  // With a window, a block that others hold too may have to be copied while all others are in use.
  int64_t spare_blocks() const { return is_windowed_ ? 1 : 0; }
  int64_t least_blocks() const { return 1 + spare_blocks(); }

  // In kSequence it follows from the context, which memory decides where it was not given.
  void choose_block_size() {
    size_.block_size = wish_.block_size;
    if (!is_sequence()) return;
    if (wish_.context == 0 && wish_.blocks == 0) {
      const int64_t fits = wish_.memory_bytes / bytes_per_token_ / least_blocks() / 16 * 16;
      size_.context = static_cast<int32_t>(std::clamp<int64_t>(fits, 1, size_.context));
    }
    size_.block_size = sequence_block_size(size_.context);
  }

  // What all sessions can fill. One block more lets a full session be rewound.
  int64_t useful() const {
    if (is_sequence()) return int64_t{wish_.max_sessions} + 1;
    const int64_t whole = (int64_t{size_.context} + size_.block_size - 1) / size_.block_size;
    return (whole + 1) * wish_.max_sessions;
  }

  // Of a group, where the groups with full history have `blocks`.
  int64_t blocks_of(const KvGroupSize& group, int64_t blocks) const {
    if (is_sequence() || group.policy.window == 0) return blocks;
    const int64_t needed =
        smallest_pool(group.policy, size_.block_size, size_.context, wish_.max_step_tokens);
    return std::min(blocks, needed * wish_.max_sessions);
  }

  int64_t bytes_of(int64_t blocks) const {
    int64_t bytes = 0;
    for (const KvGroupSize& group : groups_) {
      bytes += blocks_of(group, blocks) * size_.block_size * group.bytes_per_token;
    }
    return bytes;
  }

  // As many as memory allows, at most `most`: by halving, as bytes_of grows.
  int64_t affordable(int64_t most) const {
    int64_t fits = 0;
    for (int64_t low = 1, high = most; low <= high;) {
      const int64_t middle = low + (high - low) / 2;
      if (bytes_of(middle) <= wish_.memory_bytes) {
        fits = middle;
        low = middle + 1;
      } else {
        high = middle - 1;
      }
    }
    return fits;
  }

  int64_t tokens_held(int64_t blocks) const { return (blocks - spare_blocks()) * size_.block_size; }

  Status check_room(int64_t blocks) const {
    if (blocks < least_blocks()) {
      return invalid_argument(wish_.memory_was_given ? "kv_memory_bytes" : "kv_blocks",
                              "expected at least " + std::to_string(least_blocks()) +
                                  " of the blocks of " +
                                  std::to_string(bytes_per_token_ * size_.block_size) +
                                  " bytes, found " + std::to_string(blocks));
    }
    if (wish_.context > 0 && tokens_held(blocks) < wish_.context) {
      return invalid_argument("context", "expected at most " + std::to_string(tokens_held(blocks)) +
                                             " tokens, which is what the KV pool holds, found " +
                                             std::to_string(wish_.context));
    }
    return Status();
  }

  std::span<const KvGroupSize> groups_;
  const KvPoolWish& wish_;
  int64_t bytes_per_token_ = 0;
  bool is_windowed_ = false;
  KvPoolSize size_;
};

}  // namespace

Result<KvPoolSize> size_kv_pool(std::span<const KvGroupSize> groups, const KvPoolWish& wish) {
  return Sizes(groups, wish).choose();
}

}  // namespace chorus
