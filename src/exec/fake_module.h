// A Module without a model, for tests of everything above the backends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "exec/module.h"

namespace chorus {

struct FakeModuleOptions {
  struct Group {
    WindowPolicy policy;
    int32_t num_blocks = 0;
  };
  std::vector<MethodInfo> methods{{"forward", 1, 32, 0}};
  std::vector<Group> groups;
  int32_t vocabulary = 64;
  int32_t context = 1024;
  int32_t block_size = 16;
  TokenId nan_kv_token = -1;      // rows of this token have keys and values that are not finite
  TokenId nan_logits_token = -1;  // the logits of rows of this token hold a NaN
};

// Which call fails, counted from when the faults are set: 1 is the next one, 0 none. A call that
// fails does half of its work first, as a real one may.
struct FakeFaults {
  int32_t begin = 0;
  int32_t run = 0;
  int32_t reduce = 0;
};

// Each cell stores its token, its position and a hash of all that its row may see: the cells of the
// window of every group, read through the step's block tables, and itself. The logits of a row are
// a hash of the same. So an output is right exactly when every cell it depends on, directly or not,
// was the right one; it is a function of the tokens [0, position] alone, of no batch and no layout.
//
// The step's shape, its slices and every read are checked: a malformed step fails a CHECK, reads of
// cells that are poisoned, never written, or of another position are counted in bad_reads().
// Thread: engine. A row costs O(positions it sees).
class FakeModule final : public Module {
 public:
  // Requires: at least one group; token ids and blocks are the caller's to bound.
  explicit FakeModule(FakeModuleOptions options);

  const ModuleInfo& info() const override { return info_; }
  Status begin(const Step& step) override;
  Status run(int32_t method, const Slice& slice, std::span<uint8_t> not_finite) override;
  Status reduce_rows(std::span<const RowSpec> specs, std::span<RowResult> results,
                     std::vector<TokenLogprob>& likeliest) override;
  Status copy_cells(const CellCopy& copy) override;
  Status read_cells(int32_t group, std::span<const CellId> cells,
                    std::span<std::byte> bytes) const override;
  Status write_cells(int32_t group, std::span<const CellId> cells,
                     std::span<const std::byte> bytes) override;

  // Spoils cells that nobody's state holds, as stale data would.
  void poison(int32_t group, std::span<const CellId> cells);
  void set_faults(const FakeFaults& faults) { faults_ = faults; }

  int64_t bad_reads() const { return bad_reads_; }
  int64_t num_runs() const { return num_runs_; }
  int64_t num_rows_run() const { return num_rows_run_; }

 private:
  enum class CellState : uint8_t { kEmpty, kWritten, kNotFinite, kPoisoned };
  struct Cell {
    TokenId token = 0;
    Position position = -1;
    uint64_t hash = 0;
    CellState state = CellState::kEmpty;
  };
  struct Row {  // what the layers make of one row
    uint64_t hidden = 0;
    bool finite = true;
  };
  struct KeptRow {
    int32_t row = 0;
    Row value;
    TokenId token = 0;
  };

  // Counts one call down; true when it is the one to fail.
  static bool is_due(int32_t& countdown) { return countdown > 0 && --countdown == 0; }

  Cell& cell(int32_t group, CellId id);
  const Cell& cell(int32_t group, CellId id) const;
  void check_step(const Step& step) const;
  void check_shared(const Step& step) const;
  void check_slice(const MethodInfo& method, const Slice& slice) const;
  Row attend(int32_t row);
  void write_row(int32_t row, const Row& value);
  bool is_padded(int32_t row) const;
  void fill_logits(uint64_t hidden);
  RowResult reduce(const RowSpec& spec, std::vector<TokenLogprob>& likeliest);
  void score(const RowSpec& spec, TokenScore& token) const;
  void append_likeliest(const RowSpec& spec, TokenScore& token,
                        std::vector<TokenLogprob>& likeliest);

  FakeModuleOptions options_;
  ModuleInfo info_;
  std::vector<std::vector<Cell>> cells_;  // [group][cell]
  FakeFaults faults_;
  const Step* step_ = nullptr;
  int32_t next_row_ = 0;  // where the next slice begins
  std::vector<KeptRow> kept_;
  std::vector<float> logits_;   // [vocabulary]
  std::vector<TokenId> order_;  // scratch: ids by rank; never grows
  int64_t bad_reads_ = 0;
  int64_t num_runs_ = 0;
  int64_t num_rows_run_ = 0;
};

}  // namespace chorus
