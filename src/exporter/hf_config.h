// A Hugging Face config.json as lowerings read it: typed, and with a record of what was read, so
// that a setting that nobody implements is refused by its name.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "json/value.h"

namespace chorus {

// An object of a config.json. A member that is null counts as absent, as transformers writes null
// for what is not set. Copies and sections share one record of what was read. Thread: one at a
// time, together with its copies and sections.
//
// Errors: kDataLoss for an absent or ill-typed member, kUnimplemented for one whose value no
// lowering offers; the field is the member's whole name, "config.json.rope_scaling.factor".
class HfConfig {
 public:
  // `object` must outlive this and all sections, and must not move. `name` stands before the names
  // of members in errors. Requires: object.is_object().
  explicit HfConfig(const json::Value& object, std::string name = "config.json");

  const std::string& name() const { return name_; }
  // The whole name of a member, for errors.
  std::string field(std::string_view key) const { return name_ + "." + std::string(key); }
  // Whether the member is there and not null. Does not mark it.
  bool has(std::string_view key) const;
  // The names of the members that are not null, in order.
  std::vector<std::string> keys() const;

  // Each marks the member as read, whether or not it is there. Numbers are those that a float can
  // hold.
  Result<int64_t> get_int(std::string_view key, int64_t low, int64_t high) const;
  Result<int64_t> int_or(std::string_view key, int64_t otherwise, int64_t low, int64_t high) const;
  Result<double> get_float(std::string_view key) const;
  Result<double> float_or(std::string_view key, double otherwise) const;
  Result<bool> bool_or(std::string_view key, bool otherwise) const;
  Result<std::string> get_string(std::string_view key) const;
  Result<std::string> string_or(std::string_view key, std::string_view otherwise) const;
  // Lists; nullopt when absent.
  Result<std::optional<std::vector<int64_t>>> find_ints(std::string_view key, int64_t low,
                                                        int64_t high) const;
  Result<std::optional<std::vector<double>>> find_floats(std::string_view key) const;
  Result<std::optional<std::vector<std::string>>> find_strings(std::string_view key) const;
  // An object within this one. Its members are then asked for one by one, and check_all_used()
  // looks at them too.
  Result<HfConfig> section(std::string_view key) const;
  Result<std::optional<HfConfig>> find_section(std::string_view key) const;

  // A feature that no lowering offers: ok when the member is absent or holds `neutral`, which
  // leaves the feature off.
  Status expect_number(std::string_view key, double neutral) const;
  Status expect_bool(std::string_view key, bool neutral) const;
  Status expect_string(std::string_view key, std::string_view neutral) const;
  Status expect_absent(std::string_view key) const;
  // Marks a member, with all that is in it, as known to have no effect.
  void skip(std::string_view key) const;

  // kUnimplemented, naming the first member, here or in a section that was opened, that nobody
  // asked for. These pass: members of `harmless`; those that decide nothing about the results of a
  // forward pass (how the file was made, training, special tokens, defaults of sampling); null; and
  // the few that transformers writes with the value that switches a feature off.
  Status check_all_used(std::span<const std::string_view> harmless = {}) const;

 private:
  struct Record {
    std::unordered_set<const json::Value*> read;
    std::unordered_set<const json::Value*> opened;  // as sections
  };
  HfConfig(const json::Value& object, std::string name, std::shared_ptr<Record> record);

  // The member, marked as read; nullptr when it is absent or null.
  const json::Value* take(std::string_view key) const;
  Status missing(std::string_view key) const;
  template <typename Convert>
  auto list(std::string_view key, Convert convert) const;

  const json::Value* object_;
  std::string name_;
  std::shared_ptr<Record> record_;
};

}  // namespace chorus
