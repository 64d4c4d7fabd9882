// A model that computes nothing, so that what sessions cost beside the model can be measured.
#pragma once

#include <utility>
#include <vector>

#include "exec/module.h"

namespace chorus {

class NoModel final : public Module {
 public:
  explicit NoModel(ModuleInfo info) : info_(std::move(info)) {}

  const ModuleInfo& info() const override { return info_; }
  Status begin(const Step&) override { return {}; }
  Status run(int32_t, const Slice&, std::span<uint8_t>) override { return {}; }
  Status reduce_rows(std::span<const RowSpec> specs, std::span<RowResult> results,
                     std::vector<TokenLogprob>&) override {
    for (size_t i = 0; i < specs.size(); ++i) results[i].token.id = specs[i].position % 1000;
    return {};
  }
  Status copy_cells(const CellCopy&) override { return {}; }
  Status read_cells(int32_t, std::span<const CellId>, std::span<std::byte>) const override {
    return {};
  }
  Status write_cells(int32_t, std::span<const CellId>, std::span<const std::byte>) override {
    return {};
  }

 private:
  ModuleInfo info_;
};

}  // namespace chorus
