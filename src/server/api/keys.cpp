#include "server/api/keys.h"

#include <algorithm>
#include <cctype>
#include <span>

namespace chorus::api {

namespace {

Digest digest_of(std::string_view key) { return sha256(std::as_bytes(std::span(key))); }

bool starts_with_bearer(std::string_view text) {
  constexpr std::string_view kScheme = "bearer ";
  return text.size() >= kScheme.size() &&
         std::equal(kScheme.begin(), kScheme.end(), text.begin(), [](char a, char b) {
           return a == std::tolower(static_cast<unsigned char>(b));
         });
}

}  // namespace

Keys::Keys(const std::vector<ApiKey>& keys) {
  for (const ApiKey& key : keys) keys_.push_back({key.name, digest_of(key.key)});
}

std::optional<std::string> Keys::name_of(std::string_view authorization) const {
  if (keys_.empty()) return "";
  if (!starts_with_bearer(authorization)) return std::nullopt;
  authorization.remove_prefix(authorization.find(' ') + 1);
  while (authorization.starts_with(' ')) authorization.remove_prefix(1);
  while (authorization.ends_with(' ')) authorization.remove_suffix(1);
  // Hashes have one length, and all of them are compared to their ends.
  const Digest given = digest_of(authorization);
  const Known* found = nullptr;
  for (const Known& known : keys_) {
    unsigned difference = 0;
    for (size_t i = 0; i < given.size(); ++i) difference |= given[i] ^ known.digest[i];
    if (difference == 0) found = &known;
  }
  return found == nullptr ? std::nullopt : std::optional(found->name);
}

}  // namespace chorus::api
