// Helpers for calls into the Rust library: its errors as Status, its sinks as containers.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "text/chorus_text.h"

namespace chorus::text {

// Receives the error of one call.
class BorderError {
 public:
  BorderError() = default;
  BorderError(const BorderError&) = delete;
  BorderError& operator=(const BorderError&) = delete;

  // Valid as long as this object.
  const ChorusTextErrorSink* sink() const { return &sink_; }

  // The status of a call that returned `code` and had sink().
  Status status(int32_t code) const;

 private:
  static void receive(void* context, ChorusTextBytes field, ChorusTextBytes message);

  std::string field_;
  std::string message_;
  ChorusTextErrorSink sink_{this, receive};
};

// While one lives, ThreadSanitizer does not check what this thread reads and writes. The Rust
// library is built without it, so its locks are not seen, but its calls of malloc and memcmp are:
// what threads do one after the other would be taken for a race. Does nothing in other builds.
class UncheckedByThreadSanitizer {
 public:
  UncheckedByThreadSanitizer();
  UncheckedByThreadSanitizer(const UncheckedByThreadSanitizer&) = delete;
  UncheckedByThreadSanitizer& operator=(const UncheckedByThreadSanitizer&) = delete;
  ~UncheckedByThreadSanitizer();
};

// Calls a function of the Rust library that ends with an error sink:
//
//   CHORUS_RETURN_IF_ERROR(call_rust(chorus_text_template_create, source, &limits, &created));
template <typename... Parameters, typename... Arguments>
Status call_rust(int32_t (*function)(Parameters...), Arguments... arguments) {
  BorderError error;
  const UncheckedByThreadSanitizer unchecked;
  return error.status(function(arguments..., error.sink()));
}

ChorusTextBytes border_bytes(std::string_view text);

// A sink that assigns all elements to `container` (std::string, std::vector<int32_t>).
template <typename Container>
ChorusTextSink border_sink(Container& container) {
  return {&container, [](void* context, const void* data, size_t count) {
            const auto* first = static_cast<const typename Container::value_type*>(data);
            static_cast<Container*>(context)->assign(first, first + count);
          }};
}

}  // namespace chorus::text
