#include "base/result.h"

namespace chorus {

std::string_view code_name(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid_argument";
    case Code::kNotFound:
      return "not_found";
    case Code::kResourceExhausted:
      return "resource_exhausted";
    case Code::kCancelled:
      return "cancelled";
    case Code::kDeadlineExceeded:
      return "deadline_exceeded";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kUnimplemented:
      return "unimplemented";
    case Code::kDataLoss:
      return "data_loss";
    case Code::kInternal:
      return "internal";
  }
  return "internal";
}

std::string Status::to_string() const {
  if (ok()) return "ok";
  return field_.empty() ? message_ : field_ + ": " + message_;
}

Status Status::within(std::string_view context) const {
  if (ok() || context.empty()) return *this;
  std::string field(context);
  if (!field_.empty()) field += "." + field_;
  return Status(code_, std::move(field), message_);
}

Status invalid_argument(std::string field, std::string message) {
  return Status(Code::kInvalidArgument, std::move(field), std::move(message));
}
Status not_found(std::string field, std::string message) {
  return Status(Code::kNotFound, std::move(field), std::move(message));
}
Status resource_exhausted(std::string field, std::string message) {
  return Status(Code::kResourceExhausted, std::move(field), std::move(message));
}
Status deadline_exceeded(std::string field, std::string message) {
  return Status(Code::kDeadlineExceeded, std::move(field), std::move(message));
}
Status unavailable(std::string field, std::string message) {
  return Status(Code::kUnavailable, std::move(field), std::move(message));
}
Status unimplemented(std::string field, std::string message) {
  return Status(Code::kUnimplemented, std::move(field), std::move(message));
}
Status data_loss(std::string field, std::string message) {
  return Status(Code::kDataLoss, std::move(field), std::move(message));
}
Status internal_error(std::string field, std::string message) {
  return Status(Code::kInternal, std::move(field), std::move(message));
}

}  // namespace chorus
