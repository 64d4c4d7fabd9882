// What the functions of the C interface share: errors, structs with a size, buffers, options.
#pragma once

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "chorus/chorus.h"
#include "chorus/engine.h"

namespace chorus::c {

chorus_error error_of(const Status& status);
// The status of a generation, with the name that an option has in chorus_generation_options.
// `prompt` names the parameter that was the prompt.
Status of_generation(const Status& status, const char* prompt);

// The code of a status, with its description in `error` when it failed; that may be null.
chorus_code answer(const Status& status, chorus_error* error) noexcept;

struct Required {
  const void* pointer;
  const char* name;
};
// kInvalidArgument for the name of a file that is null or empty.
Status require_path(const char* path, const char* name);
// kInvalidArgument with the name of the first pointer that is null.
Status require(std::initializer_list<Required> all);
// The same for an array, which may be null when it is empty.
Status require_array(const void* pointer, size_t count, const char* name);

// The caller's options as this library knows them: what an older header lacks is zero, and what a
// newer one adds must be.
template <typename Options>
Result<Options> options_of(const Options* given) {
  static_assert(std::is_trivially_copyable_v<Options>);
  Options options{};
  if (given == nullptr) return options;
  size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  if (size < sizeof size) {
    return invalid_argument("options.size",
                            "expected the size of the struct, found " + std::to_string(size));
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(Options); i < size; ++i) {
    if (bytes[i] == 0) continue;
    return invalid_argument("options.size", "expected options that this library knows (" +
                                                std::to_string(sizeof(Options)) +
                                                " bytes), found one at byte " + std::to_string(i));
  }
  std::memcpy(&options, given, std::min(size, sizeof(Options)));
  return options;
}

// Writes as much of a struct as the caller has room for.
template <typename Out>
Status fill(const Out& value, Out* out, const char* name) {
  static_assert(std::is_trivially_copyable_v<Out>);
  CHORUS_RETURN_IF_ERROR(require({{out, name}}));
  size_t size = 0;
  std::memcpy(&size, out, sizeof size);
  if (size < sizeof size) {
    return invalid_argument(std::string(name) + ".size",
                            "expected the size of the struct, found " + std::to_string(size));
  }
  std::memcpy(reinterpret_cast<char*>(out) + sizeof size,
              reinterpret_cast<const char*>(&value) + sizeof size,
              std::min(size, sizeof(Out)) - sizeof size);
  return Status();
}

template <typename T>
Status write_buffer(std::span<const T> values, T* out, size_t capacity, size_t* count) {
  *count = values.size();
  if (out == nullptr) return Status();
  if (values.size() > capacity) {
    return invalid_argument("capacity", "expected at least " + std::to_string(values.size()) +
                                            ", found " + std::to_string(capacity));
  }
  std::copy(values.begin(), values.end(), out);
  return Status();
}

// Zero means not given. Errors: kInvalidArgument with the member as field.
Result<EngineOptions> engine_options(const chorus_engine_options* given);
Result<SessionOptions> session_options(const chorus_session_options* given);

struct GenerateOptions {
  GenerationOptions options;
  std::vector<std::string> stops;
  TextOptions text;
};
Result<GenerateOptions> generation_options(const chorus_generation_options* given);

}  // namespace chorus::c
