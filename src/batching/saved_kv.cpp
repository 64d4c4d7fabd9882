// Save and load of SessionExecutor. The form, little endian:
//   u32 tokens, u32 groups; for each group u32 first position held, u32 0, u64 bytes of a cell;
//   then for each group the cells of positions [first, tokens), as Module::read_cells gives them.
#include <algorithm>
#include <cstring>
#include <string>

#include "batching/session_executor.h"

namespace chorus {
namespace {

constexpr Position kCellsAtATime = 64;

struct Header {
  uint32_t tokens = 0;
  uint32_t groups = 0;
};
struct GroupHeader {
  uint32_t first_position = 0;
  uint32_t zero = 0;
  uint64_t cell_bytes = 0;
};
static_assert(sizeof(Header) == 8 && sizeof(GroupHeader) == 16);

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <typename T>
std::span<std::byte> writable_bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

// The cells of positions [begin, end) of a table.
void cells_of(const BlockTable& table, int32_t block_size, Position begin, Position end,
              std::vector<CellId>& cells) {
  cells.clear();
  for (Position p = begin; p < end; ++p) {
    const auto block = static_cast<size_t>(p / block_size - table.first_block);
    cells.push_back(table.blocks[block] * block_size + p % block_size);
  }
}

Status wrong(const std::string& field, const std::string& expected, int64_t found) {
  return data_loss(field, "expected " + expected + ", found " + std::to_string(found));
}

}  // namespace

// Calls visit(group, cells, bytes of a cell) for all cells held by a session, in canonical order.
template <typename Visit>
Status SessionExecutor::for_held_cells(SequenceId sequence, Visit visit) const {
  const KvBooks& books = sessions_->books();
  const Position length = books.length(sequence);
  std::vector<CellId> cells;
  for (int32_t group = 0; group < books.num_groups(); ++group) {
    const BlockTable table = books.table(sequence, group);
    const int64_t bytes = module_.info().groups[static_cast<size_t>(group)].bytes_per_cell;
    for (Position begin = table.first_position; begin < length; begin += kCellsAtATime) {
      cells_of(table, books.block_size(), begin, std::min(length, begin + kCellsAtATime), cells);
      CHORUS_RETURN_IF_ERROR(visit(group, cells, static_cast<size_t>(bytes)));
    }
  }
  return {};
}

Status SessionExecutor::save(SessionId session, ByteSink& sink) {
  CHORUS_ASSIGN_OR_RETURN(const SequenceId sequence, sessions_->sequence_of(session));
  const KvBooks& books = sessions_->books();
  const Header header{static_cast<uint32_t>(books.length(sequence)),
                      static_cast<uint32_t>(books.num_groups())};
  CHORUS_RETURN_IF_ERROR(sink.write(bytes_of(header)));
  for (int32_t group = 0; group < books.num_groups(); ++group) {
    const GroupHeader each{
        static_cast<uint32_t>(books.table(sequence, group).first_position), 0,
        static_cast<uint64_t>(module_.info().groups[static_cast<size_t>(group)].bytes_per_cell)};
    CHORUS_RETURN_IF_ERROR(sink.write(bytes_of(each)));
  }
  std::vector<std::byte> bytes;
  return for_held_cells(sequence,
                        [&](int32_t group, const std::vector<CellId>& cells, size_t cell_bytes) {
                          bytes.resize(cells.size() * cell_bytes);
                          CHORUS_RETURN_IF_ERROR(module_.read_cells(group, cells, bytes));
                          return sink.write(bytes);
                        });
}

// Reads and checks what stands before the cells.
Status SessionExecutor::read_extent(ByteSource& source, Position& length,
                                    std::vector<Position>& first_positions) const {
  Header header;
  CHORUS_RETURN_IF_ERROR(source.read(writable_bytes_of(header)));
  const KvOptions& kv = sessions_->options().kv;
  if (header.tokens > static_cast<uint32_t>(kv.max_sequence_tokens))
    return wrong("tokens", "at most " + std::to_string(kv.max_sequence_tokens), header.tokens);
  length = static_cast<Position>(header.tokens);
  if (header.groups != kv.groups.size())
    return wrong("groups", std::to_string(kv.groups.size()) + " layer groups", header.groups);
  for (size_t group = 0; group < kv.groups.size(); ++group) {
    const std::string field = "groups[" + std::to_string(group) + "].";
    GroupHeader each;
    CHORUS_RETURN_IF_ERROR(source.read(writable_bytes_of(each)));
    const Position visible = first_visible(length, kv.groups[group].policy);
    if (each.first_position > static_cast<uint32_t>(visible))
      return wrong(field + "first_position", "at most " + std::to_string(visible),
                   each.first_position);
    const auto cell_bytes = static_cast<uint64_t>(module_.info().groups[group].bytes_per_cell);
    if (each.cell_bytes != cell_bytes || each.zero != 0)
      return wrong(field + "cell_bytes", std::to_string(cell_bytes),
                   static_cast<int64_t>(each.cell_bytes & 0x7fffffffffffffff));
    first_positions.push_back(static_cast<Position>(each.first_position));
  }
  return {};
}

Result<SessionId> SessionExecutor::load(const SessionOptions& options, std::span<const TokenId>,
                                        ByteSource& source) {
  Position length = 0;
  std::vector<Position> first_positions;
  CHORUS_RETURN_IF_ERROR(read_extent(source, length, first_positions));
  if (length == 0) return open(options);
  CHORUS_ASSIGN_OR_RETURN(const SessionId session,
                          sessions_->restore(options, length, first_positions));
  CHORUS_ASSIGN_OR_RETURN(const SequenceId sequence, sessions_->sequence_of(session));
  std::vector<std::byte> bytes;
  const Status status = for_held_cells(
      sequence, [&](int32_t group, const std::vector<CellId>& cells, size_t cell_bytes) {
        bytes.resize(cells.size() * cell_bytes);
        CHORUS_RETURN_IF_ERROR(source.read(bytes));
        return module_.write_cells(group, cells, bytes);
      });
  if (!status.ok()) {
    close(session);
    return status;
  }
  return session;
}

}  // namespace chorus
