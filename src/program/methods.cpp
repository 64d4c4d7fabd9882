// The methods of a program: their making and their checks.
#include <string>
#include <utility>

#include "program/limits.h"
#include "program/manifest.h"
#include "program/names.h"

namespace chorus {

namespace {

Status check_range(std::string field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return Status();
  return data_loss(std::move(field), "expected " + std::to_string(low) + " to " +
                                         std::to_string(high) + ", found " + std::to_string(value));
}

Status check_bounds(const Method& method, const std::string& field) {
  CHORUS_RETURN_IF_ERROR(check_range(field + "max_tokens", method.max_tokens, 1, kMaxStepTokens));
  CHORUS_RETURN_IF_ERROR(
      check_range(field + "min_tokens", method.min_tokens, 1, method.max_tokens));
  CHORUS_RETURN_IF_ERROR(
      check_range(field + "min_wanted", method.min_wanted, 0, method.min_tokens));
  if (method.name == "decode" || method.widths.empty()) return Status();
  return data_loss(field + "widths", "expected none for " + method.name + ", found " +
                                         std::to_string(method.widths.size()));
}

Status check_widths(const Method& decode, const Method& prefill) {
  const std::vector<int32_t>& widths = decode.widths;
  const auto fail = [](std::string message) {
    return data_loss("methods[0].widths", std::move(message));
  };
  if (widths.empty() || widths.size() > kMaxWidths) {
    return fail("expected 1 to " + std::to_string(kMaxWidths) + " widths, found " +
                std::to_string(widths.size()));
  }
  for (size_t i = 1; i < widths.size(); ++i) {
    if (widths[i] > widths[i - 1]) continue;
    return fail("expected each above the one before, found " + std::to_string(widths[i]) +
                " after " + std::to_string(widths[i - 1]));
  }
  if (widths.back() > prefill.max_tokens) {
    return fail("expected at most " + std::to_string(prefill.max_tokens) +
                ", the tokens of a prefill, found " + std::to_string(widths.back()));
  }
  if (widths.front() != 1 && prefill.min_tokens > 1) {
    return fail("expected 1 among them, since a prefill takes at least " +
                std::to_string(prefill.min_tokens) + " tokens, found " +
                std::to_string(widths.front()) + " as the first");
  }
  CHORUS_RETURN_IF_ERROR(
      check_range("methods[0].min_tokens", decode.min_tokens, widths.front(), widths.front()));
  return check_range("methods[0].max_tokens", decode.max_tokens, widths.back(), widths.back());
}

Status check_name(const std::vector<Method>& methods, size_t i, std::string_view expected) {
  if (i < methods.size() && methods[i].name == expected) return Status();
  if (i >= methods.size()) {
    return data_loss("methods", "expected " + std::string(expected) + " beside " + methods[0].name +
                                    ", found no other");
  }
  const std::string field = "methods[" + std::to_string(i) + "].name";
  return data_loss(field,
                   "expected " + std::string(expected) + ", found " + quoted(methods[i].name));
}

}  // namespace

std::vector<Method> forward_method(int32_t max_tokens) { return {{"forward", 1, max_tokens, 0}}; }

std::vector<Method> decode_and_prefill(std::vector<int32_t> widths, int32_t min_prefill,
                                       int32_t max_prefill) {
  Method decode{"decode", 0, 0, 0, std::move(widths)};
  if (!decode.widths.empty()) {
    decode.min_tokens = decode.widths.front();
    decode.max_tokens = decode.widths.back();
  }
  return {std::move(decode), {"prefill", min_prefill, max_prefill, 0}};
}

Status check_methods(const std::vector<Method>& methods) {
  if (methods.empty()) return data_loss("methods", "expected at least 1, found 0");
  const bool has_forward = methods[0].name == "forward";
  if (!has_forward && methods[0].name != "decode") {
    return data_loss("methods[0].name", "expected forward, or decode and then prefill, found " +
                                            quoted(methods[0].name));
  }
  if (!has_forward) CHORUS_RETURN_IF_ERROR(check_name(methods, 1, "prefill"));
  const size_t count = has_forward ? 1 : 2;
  if (methods.size() > count) {
    return data_loss("methods[" + std::to_string(count) + "].name",
                     "expected no method beside " + methods[0].name +
                         (has_forward ? "" : " and prefill") + ", found " +
                         quoted(methods[count].name));
  }
  if (has_forward) {
    CHORUS_RETURN_IF_ERROR(check_bounds(methods[0], "methods[0]."));
    return check_range("methods[0].min_tokens", methods[0].min_tokens, 1, 1);
  }
  CHORUS_RETURN_IF_ERROR(check_bounds(methods[1], "methods[1]."));
  CHORUS_RETURN_IF_ERROR(check_widths(methods[0], methods[1]));
  return check_bounds(methods[0], "methods[0].");
}

}  // namespace chorus
