// Who may ask.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "server/api/options.h"

namespace chorus::api {

// Thread: immutable.
class Keys {
 public:
  explicit Keys(const std::vector<ApiKey>& keys);

  bool is_empty() const { return keys_.empty(); }
  // The name of the key in an authorization header ("Bearer KEY"); with no keys at all everybody is
  // "". The time that it takes says nothing about the keys.
  std::optional<std::string> name_of(std::string_view authorization) const;

 private:
  struct Known {
    std::string name;
    Digest digest;
  };
  std::vector<Known> keys_;
};

}  // namespace chorus::api
