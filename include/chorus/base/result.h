// Errors as values: a Status says what went wrong and in which field, a Result<T> is a T or a
// Status.
//
// For faults that come from outside (a file, a request, a device). A bug of our own is a failed
// CHORUS_CHECK (base/check.h); ordinary outcomes such as a full queue are a bool or an optional.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "chorus/base/check.h"

namespace chorus {

// The closed set of codes. Every one has a caller that branches on it.
enum class Code : uint8_t {
  kOk,
  kInvalidArgument,    // the caller's value is wrong; the same call will fail again
  kNotFound,           // a file or an id that does not exist
  kResourceExhausted,  // more than a limit allows: KV blocks, sessions, queue places
  kCancelled,          // ended on request
  kDeadlineExceeded,   // ended by its deadline
  kUnavailable,        // the engine is stopping or could not start
  kUnimplemented,      // a known feature that this build or part does not offer
  kDataLoss,           // a program, model or session file that is damaged or not acceptable
  kInternal,           // a step failed in a backend
};

// "invalid_argument" and so on: the names used in JSON output.
std::string_view code_name(Code code);

// A value. Thread: any.
class [[nodiscard]] Status {
 public:
  Status() = default;  // ok

  // field: the flag, file field or parameter that is at fault, as its user writes it; may be empty.
  // message: lower case, no full stop: what was expected, what was found.
  Status(Code code, std::string field, std::string message)
      : code_(code), field_(std::move(field)), message_(std::move(message)) {
    CHORUS_CHECK(code != Code::kOk);
  }

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& field() const { return field_; }
  const std::string& message() const { return message_; }

  // "field: message", for people.
  std::string to_string() const;

  // The same error seen from further out: "context.field".
  Status within(std::string_view context) const;

  friend bool operator==(const Status&, const Status&) = default;

 private:
  Code code_ = Code::kOk;
  std::string field_;
  std::string message_;
};

Status invalid_argument(std::string field, std::string message);
Status not_found(std::string field, std::string message);
Status resource_exhausted(std::string field, std::string message);
Status deadline_exceeded(std::string field, std::string message);
Status unavailable(std::string field, std::string message);
Status unimplemented(std::string field, std::string message);
Status data_loss(std::string field, std::string message);
Status internal_error(std::string field, std::string message);

// A T, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) { CHORUS_CHECK(!status_.ok()); }  // NOLINT

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  // Requires: ok().
  T& value() & {
    CHORUS_CHECK(value_.has_value());
    return *value_;
  }
  const T& value() const& {
    CHORUS_CHECK(value_.has_value());
    return *value_;
  }
  T&& value() && {
    CHORUS_CHECK(value_.has_value());
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace chorus

#define CHORUS_CONCAT_INNER(a, b) a##b
#define CHORUS_CONCAT(a, b) CHORUS_CONCAT_INNER(a, b)

// Returns the status of `expression` from the calling function unless it is ok.
#define CHORUS_RETURN_IF_ERROR(expression)                                    \
  do {                                                                        \
    if (::chorus::Status chorus_status_ = (expression); !chorus_status_.ok()) \
      return chorus_status_;                                                  \
  } while (false)

// CHORUS_ASSIGN_OR_RETURN(auto file, open(path)): declares or assigns on success, else returns the
// status.
#define CHORUS_ASSIGN_OR_RETURN(target, expression) \
  CHORUS_ASSIGN_OR_RETURN_INNER(CHORUS_CONCAT(chorus_result_, __LINE__), target, expression)
#define CHORUS_ASSIGN_OR_RETURN_INNER(result, target, expression) \
  auto result = (expression);                                     \
  if (!result.ok()) return result.status();                       \
  target = std::move(result).value()
