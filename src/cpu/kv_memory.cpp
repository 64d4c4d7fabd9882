#include "cpu/kv_memory.h"

#include <cstring>
#include <string>
#include <sys/mman.h>
#include <utility>

namespace chorus::cpu {

namespace {

constexpr int64_t kPage = 4096;

int64_t padded_dim(int32_t head_dim) { return (int64_t{head_dim} + kUnit - 1) / kUnit * kUnit; }

std::string out_of_range(const char* what, int64_t value, int64_t bound) {
  return std::string("expected ") + what + " below " + std::to_string(bound) + ", found " +
         std::to_string(value);
}

}  // namespace

Result<KvMemory> KvMemory::create(const Graph& graph, KvType type, int32_t block_size,
                                  std::span<const int32_t> num_blocks) {
  CHORUS_CHECK(is_block_size(block_size));
  CHORUS_CHECK_EQ(num_blocks.size(), graph.groups.size());
  KvMemory memory;
  memory.type_ = type;
  memory.block_size_ = block_size;
  memory.num_blocks_.assign(num_blocks.begin(), num_blocks.end());
  memory.layers_.resize(graph.kv_layers.size());
  uint64_t total = 0;
  constexpr uint64_t kMost = uint64_t{1} << 46;
  for (size_t g = 0; g < graph.groups.size(); ++g) {
    memory.groups_.push_back(graph.groups[g].layers);
    for (const int32_t index : graph.groups[g].layers) {
      const KvLayer& source = graph.kv_layers[static_cast<size_t>(index)];
      Layer& layer = memory.layers_[static_cast<size_t>(index)];
      layer.group = static_cast<int32_t>(g);
      layer.num_heads = source.num_kv_heads;
      layer.layout.block_size = block_size;
      layer.layout.head_dim = source.head_dim;
      layer.layout.block_bytes =
          block_size * kv_cell_bytes(static_cast<int>(type), source.head_dim);
      layer.layout.head_bytes = layer.layout.block_bytes * num_blocks[g];
      // At most 2^17 * 4 bytes for each of 2^31 cells: no overflow before the bound is checked.
      const auto arena = static_cast<uint64_t>(layer.layout.head_bytes + kPage - 1) / kPage * kPage;
      if (arena > kMost / 2 / static_cast<uint64_t>(layer.num_heads) ||
          (total += 2 * arena * static_cast<uint64_t>(layer.num_heads)) > kMost) {
        return resource_exhausted("num_blocks", "the key-value memory exceeds 2^46 bytes");
      }
    }
  }
  memory.size_ = static_cast<size_t>(total) + kPage;
  void* start = mmap(nullptr, memory.size_, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) {
    return resource_exhausted("num_blocks", "cannot reserve " + std::to_string(memory.size_) +
                                                " bytes of key-value memory");
  }
  memory.memory_ = static_cast<std::byte*>(start);
  std::byte* next = memory.memory_;
  for (Layer& layer : memory.layers_) {
    const int64_t arena = (layer.layout.head_bytes * layer.num_heads + kPage - 1) / kPage * kPage;
    layer.k = next;
    layer.v = next + arena;
    next += 2 * arena;
  }
  return memory;
}

KvMemory::KvMemory(KvMemory&& other) noexcept { *this = std::move(other); }

KvMemory& KvMemory::operator=(KvMemory&& other) noexcept {
  std::swap(type_, other.type_);
  std::swap(block_size_, other.block_size_);
  std::swap(num_blocks_, other.num_blocks_);
  std::swap(groups_, other.groups_);
  std::swap(layers_, other.layers_);
  std::swap(memory_, other.memory_);
  std::swap(size_, other.size_);
  return *this;
}

KvMemory::~KvMemory() {
  if (memory_ != nullptr) munmap(memory_, size_);
}

int64_t KvMemory::bytes_per_cell(int32_t group) const {
  int64_t bytes = 0;
  for (const int32_t index : groups_[static_cast<size_t>(group)]) {
    const Layer& l = layer(index);
    bytes += 2 * int64_t{l.num_heads} *
             (l.layout.head_dim * kv_element_bytes(type_index()) +
              kv_scale_bytes(type_index(), l.layout.head_dim));
  }
  return bytes;
}

Status KvMemory::copy_cells(const CellCopy& copy) {
  if (copy.group < 0 || copy.group >= std::ssize(groups_)) {
    return invalid_argument("group", out_of_range("a group", copy.group, std::ssize(groups_)));
  }
  const int32_t num_blocks = num_blocks_[static_cast<size_t>(copy.group)];
  for (const BlockId block : {copy.from, copy.to}) {
    if (block < 0 || block >= num_blocks) {
      return invalid_argument("block", out_of_range("a block", block, num_blocks));
    }
  }
  if (copy.num_cells < 0 || copy.num_cells > block_size_) {
    return invalid_argument("num_cells", out_of_range("a count", copy.num_cells, block_size_ + 1));
  }
  for (const int32_t index : groups_[static_cast<size_t>(copy.group)]) {
    const Layer& layer = layers_[static_cast<size_t>(index)];
    // Whole units: the cells behind the last one copied are free in a block that is being filled.
    const int64_t cell_bytes = layer.layout.block_bytes / block_size_;
    const int64_t cells =
        block_size_ == 1 ? copy.num_cells : (copy.num_cells + kUnit - 1) / kUnit * kUnit;
    for (int32_t head = 0; head < layer.num_heads; ++head) {
      for (std::byte* arena : {layer.k, layer.v}) {
        std::byte* blocks = arena + head * layer.layout.head_bytes;
        std::memmove(blocks + copy.to * layer.layout.block_bytes,
                     blocks + copy.from * layer.layout.block_bytes,
                     static_cast<size_t>(cells * cell_bytes));
      }
    }
  }
  return Status();
}

template <typename F>
void KvMemory::for_pieces(const Layer& layer, CellId cell, F f) const {
  const int64_t element = kv_element_bytes(type_index());
  const int64_t scales = kv_scale_bytes(type_index(), layer.layout.head_dim);
  const int64_t d = padded_dim(layer.layout.head_dim);
  const int64_t k_lanes = 4 / element;  // elements of a 32-bit lane
  const int64_t v_lanes = type_ == KvType::kQ8 ? 1 : k_lanes;
  const int64_t place = cell % block_size_;
  const int64_t lane = place % kUnit;
  const int64_t unit = int64_t{cell / block_size_} * layer.layout.block_bytes +
                       place / kUnit * kUnit * (d * element + scales);
  for (const bool is_key : {true, false}) {
    for (int32_t head = 0; head < layer.num_heads; ++head) {
      std::byte* start = (is_key ? layer.k : layer.v) + head * layer.layout.head_bytes + unit;
      for (int64_t dim = 0; dim < layer.layout.head_dim; ++dim) {
        int64_t index = dim;
        if (block_size_ != 1) {
          index = is_key ? (dim / k_lanes * kUnit + lane) * k_lanes + dim % k_lanes
                         : (lane / v_lanes * d + dim) * v_lanes + lane % v_lanes;
        }
        f(start + index * element, static_cast<size_t>(element));
      }
      for (int64_t at = 0; at < scales; at += 4) {
        f(start + (block_size_ == 1 ? d + at : kUnit * (d + at) + 4 * lane), size_t{4});
      }
    }
  }
}

Status KvMemory::check_cells(int32_t group, std::span<const CellId> cells, size_t num_bytes) const {
  if (group < 0 || group >= std::ssize(groups_)) {
    return invalid_argument("group", out_of_range("a group", group, std::ssize(groups_)));
  }
  const int64_t num_cells = int64_t{num_blocks_[static_cast<size_t>(group)]} * block_size_;
  for (const CellId cell : cells) {
    if (cell < 0 || cell >= num_cells) {
      return invalid_argument("cells", out_of_range("a cell", cell, num_cells));
    }
  }
  if (num_bytes != cells.size() * static_cast<size_t>(bytes_per_cell(group))) {
    return invalid_argument("bytes", "expected " + std::to_string(bytes_per_cell(group)) +
                                         " bytes for each cell, found " +
                                         std::to_string(num_bytes));
  }
  return Status();
}

Status KvMemory::read_cells(int32_t group, std::span<const CellId> cells,
                            std::span<std::byte> bytes) const {
  CHORUS_RETURN_IF_ERROR(check_cells(group, cells, bytes.size()));
  std::byte* out = bytes.data();
  for (const CellId cell : cells) {
    for (const int32_t index : groups_[static_cast<size_t>(group)]) {
      for_pieces(layer(index), cell, [&](const std::byte* from, size_t size) {
        std::memcpy(out, from, size);
        out += size;
      });
    }
  }
  return Status();
}

Status KvMemory::write_cells(int32_t group, std::span<const CellId> cells,
                             std::span<const std::byte> bytes) {
  CHORUS_RETURN_IF_ERROR(check_cells(group, cells, bytes.size()));
  const std::byte* in = bytes.data();
  for (const CellId cell : cells) {
    for (const int32_t index : groups_[static_cast<size_t>(group)]) {
      for_pieces(layer(index), cell, [&](std::byte* to, size_t size) {
        std::memcpy(to, in, size);
        in += size;
      });
    }
  }
  return Status();
}

}  // namespace chorus::cpu
