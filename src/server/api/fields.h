// The members of a JSON object, read by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "exec/types.h"
#include "json/value.h"

namespace chorus::api {

// null counts as not given, and leaves the target as it is. The first error stays, and what follows
// it is not read. Names in errors begin with `path`.
class Fields {
 public:
  // `object` outlives this. An error when it is no object.
  explicit Fields(const json::Value& object, std::string path = "");

  // The member, or nullptr where it is not given.
  const json::Value* find(std::string_view name) const;
  std::string name_of(std::string_view name) const;

  void read(std::string_view name, bool& target);
  void read(std::string_view name, std::string& target);
  void read(std::string_view name, std::optional<std::string>& target);
  void read(std::string_view name, std::optional<std::vector<TokenId>>& target);
  template <typename Integer>
  void read(std::string_view name, int64_t low, int64_t high, Integer& target) {
    if (const auto value = integer(name, low, high)) target = static_cast<int32_t>(*value);
  }

  void fail(Status error);
  const Status& status() const { return status_; }

 private:
  std::optional<int64_t> integer(std::string_view name, int64_t low, int64_t high);

  const json::Value& object_;
  const std::string path_;
  Status status_;
};

// An array of token ids. Whether they are in a vocabulary is not looked at.
Result<std::vector<TokenId>> read_token_ids(const json::Value& value, const std::string& name);

}  // namespace chorus::api
