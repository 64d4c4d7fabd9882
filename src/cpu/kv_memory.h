// The bytes of keys and values, in the interleaved blocks of kernels.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "cpu/kernels/kernels.h"
#include "exec/module.h"
#include "kv/types.h"
#include "program/graph.h"

namespace chorus::cpu {

// kQ8: 8-bit integers with a scale for each 32 of a head.
enum class KvType : uint8_t { kF32 = kKvF32, kBf16 = kKvBf16, kQ8 = kKvQ8 };

// The pools of all layer groups. Each arena (K or V of a layer) is [kv head][block][block bytes].
// Memory is reserved at creation and becomes resident, as zeros, where it is first written.
// Thread: engine; during a step the kernels write and read through arenas().
class KvMemory {
 public:
  // One layer's arenas as kernels take them.
  struct Layer {
    KvLayout layout;
    int32_t group = 0;
    int32_t num_heads = 0;
    std::byte* k = nullptr;
    std::byte* v = nullptr;
  };

  // Requires: is_block_size(block_size); one entry of num_blocks per group, each >= 0 and of fewer
  // than 2^31 cells.
  // Errors: kResourceExhausted when the address space cannot be reserved.
  static Result<KvMemory> create(const Graph& graph, KvType type, int32_t block_size,
                                 std::span<const int32_t> num_blocks);

  KvMemory(KvMemory&& other) noexcept;
  KvMemory& operator=(KvMemory&& other) noexcept;
  KvMemory(const KvMemory&) = delete;
  KvMemory& operator=(const KvMemory&) = delete;
  ~KvMemory();

  int type_index() const { return static_cast<int>(type_); }
  const Layer& layer(int32_t layer) const { return layers_[static_cast<size_t>(layer)]; }
  // Canonical bytes of one cell of a group: K and V of all its layers, without padding; of q8, each
  // head's elements and then their scales.
  int64_t bytes_per_cell(int32_t group) const;

  // The three of Module. Errors: kInvalidArgument for a group, block, cell or size out of range.
  Status copy_cells(const CellCopy& copy);
  Status read_cells(int32_t group, std::span<const CellId> cells, std::span<std::byte> bytes) const;
  Status write_cells(int32_t group, std::span<const CellId> cells,
                     std::span<const std::byte> bytes);

 private:
  KvMemory() = default;
  Status check_cells(int32_t group, std::span<const CellId> cells, size_t num_bytes) const;
  // Calls f(place, bytes) for the pieces of a layer's cell in the canonical order: the K of all
  // heads, then the V.
  template <typename F>
  void for_pieces(const Layer& layer, CellId cell, F f) const;

  KvType type_ = KvType::kBf16;
  int32_t block_size_ = 16;
  std::vector<int32_t> num_blocks_;           // per group
  std::vector<std::vector<int32_t>> groups_;  // layers of each group, ascending
  std::vector<Layer> layers_;
  std::byte* memory_ = nullptr;
  size_t size_ = 0;
};

}  // namespace chorus::cpu
