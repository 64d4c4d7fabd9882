#include "server/api/random_id.h"

#include <cstdint>
#include <sys/random.h>

#include "base/check.h"

namespace chorus::api {

std::string random_id() {
  static constexpr char kHex[] = "0123456789abcdef";
  uint8_t bytes[16];
  // So few bytes come whole or not at all.
  CHORUS_CHECK(getrandom(bytes, sizeof bytes, 0) == static_cast<ssize_t>(sizeof bytes));
  std::string id;
  for (const uint8_t byte : bytes) {
    id += kHex[byte >> 4];
    id += kHex[byte & 15];
  }
  return id;
}

}  // namespace chorus::api
