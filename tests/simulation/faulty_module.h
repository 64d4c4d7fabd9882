// The module of a simulated engine: steps take time, free cells hold garbage, and calls can fail.
#pragma once

#include <cstdint>
#include <utility>

#include "base/clock.h"
#include "base/random.h"
#include "exec/fake_module.h"
#include "kv/books.h"

namespace chorus::simulation {

class FaultyModule final : public Module {
 public:
  FaultyModule(FakeModuleOptions options, ManualClock& clock, uint64_t seed)
      : fake_(std::move(options)), clock_(clock), random_(seed) {}

  // The books of the executor over this module, from which it knows what is free.
  void set_books(const KvBooks* books) { books_ = books; }
  // Calls of a step fail as FakeFaults says, after half of their work.
  void set_faults(const FakeFaults& faults) { fake_.set_faults(faults); }
  // So many transfers of cells from now, one fails: 1 is the next one.
  void fail_transfer(int32_t countdown) { transfer_fault_ = countdown; }

  int64_t num_step_faults() const { return num_step_faults_; }
  int64_t num_transfer_faults() const { return num_transfer_faults_; }
  int64_t bad_reads() const { return fake_.bad_reads(); }

  const ModuleInfo& info() const override { return fake_.info(); }
  Status begin(const Step& step) override {
    poison_free_cells();
    clock_.advance_ns(random_.between(0, 2'000'000));
    return count(fake_.begin(step));
  }
  Status run(int32_t method, const Slice& slice, std::span<uint8_t> not_finite) override {
    clock_.advance_ns(random_.between(0, 1'000'000));
    return count(fake_.run(method, slice, not_finite));
  }
  Status reduce_rows(std::span<const RowSpec> specs, std::span<RowResult> results,
                     std::vector<TokenLogprob>& likeliest) override {
    return count(fake_.reduce_rows(specs, results, likeliest));
  }
  Status copy_cells(const CellCopy& copy) override { return fake_.copy_cells(copy); }
  Status read_cells(int32_t group, std::span<const CellId> cells,
                    std::span<std::byte> bytes) const override {
    if (transfer_fails()) return internal_error("transfer", "failed by the simulation");
    return fake_.read_cells(group, cells, bytes);
  }
  Status write_cells(int32_t group, std::span<const CellId> cells,
                     std::span<const std::byte> bytes) override {
    if (transfer_fails()) return internal_error("transfer", "failed by the simulation");
    return fake_.write_cells(group, cells, bytes);
  }

 private:
  Status count(Status status) {
    if (!status.ok()) ++num_step_faults_;
    return status;
  }
  bool transfer_fails() const {
    if (transfer_fault_ == 0 || --transfer_fault_ > 0) return false;
    ++num_transfer_faults_;
    return true;
  }
  // What no state holds before a step may hold anything: the blocks that the step is about to fill
  // included.
  void poison_free_cells() {
    for (int32_t group = 0; group < books_->num_groups(); ++group) {
      for (const BlockId block : books_->free_blocks(group)) {
        cells_.clear();
        for (int32_t i = 0; i < books_->block_size(); ++i)
          cells_.push_back(block * books_->block_size() + i);
        fake_.poison(group, cells_);
      }
    }
  }

  FakeModule fake_;
  ManualClock& clock_;
  RandomStream random_;
  const KvBooks* books_ = nullptr;
  std::vector<CellId> cells_;
  mutable int32_t transfer_fault_ = 0;
  mutable int64_t num_transfer_faults_ = 0;
  int64_t num_step_faults_ = 0;
};

}  // namespace chorus::simulation
