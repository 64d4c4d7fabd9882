// A Module that passes every call on to another one, and fails those it is told to fail.
#pragma once

#include <span>
#include <vector>

#include "exec/module.h"

namespace chorus::contract {

// Which call fails, counted from when it is set: 1 is the next one, 0 none. The call does its work
// first, so that the bytes of a failed step have been written.
struct Faults {
  int begin = 0;
  int run = 0;
  int reduce = 0;
};

class FaultyModule final : public Module {
 public:
  explicit FaultyModule(Module& inner) : inner_(inner) {}

  void set_faults(const Faults& faults) { faults_ = faults; }

  const ModuleInfo& info() const override { return inner_.info(); }
  Status begin(const Step& step) override { return after(inner_.begin(step), faults_.begin); }
  Status run(int32_t method, const Slice& slice, std::span<uint8_t> not_finite) override {
    return after(inner_.run(method, slice, not_finite), faults_.run);
  }
  Status reduce_rows(std::span<const RowSpec> specs, std::span<RowResult> results,
                     std::vector<TokenLogprob>& likeliest) override {
    return after(inner_.reduce_rows(specs, results, likeliest), faults_.reduce);
  }
  Status copy_cells(const CellCopy& copy) override { return inner_.copy_cells(copy); }
  Status read_cells(int32_t group, std::span<const CellId> cells,
                    std::span<std::byte> bytes) const override {
    return inner_.read_cells(group, cells, bytes);
  }
  Status write_cells(int32_t group, std::span<const CellId> cells,
                     std::span<const std::byte> bytes) override {
    return inner_.write_cells(group, cells, bytes);
  }

 private:
  static Status after(Status status, int& countdown) {
    if (countdown > 0 && --countdown == 0) return internal_error("fault", "injected");
    return status;
  }

  Module& inner_;
  Faults faults_;
};

}  // namespace chorus::contract
