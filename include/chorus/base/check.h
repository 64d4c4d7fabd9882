// Checks for bugs of our own. Always on, at layer borders and in bookkeeping; nothing in a request
// or a file can make one fail. A failed check prints the expression with its values and aborts.
#pragma once

#include <string>
#include <type_traits>

namespace chorus::internal {

[[noreturn]] void check_failed(const char* file, int line, const char* expression,
                               const std::string& values);

template <typename T>
std::string check_value(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return std::to_string(static_cast<long long>(value));
  } else if constexpr (std::is_arithmetic_v<T>) {
    return std::to_string(value);
  } else {
    return "?";
  }
}

template <typename A, typename B>
std::string check_values(const A& a, const B& b) {
  return check_value(a) + " and " + check_value(b);
}

}  // namespace chorus::internal

#define CHORUS_CHECK(condition)                                                        \
  do {                                                                                 \
    if (!(condition)) [[unlikely]]                                                     \
      ::chorus::internal::check_failed(__FILE__, __LINE__, #condition, std::string()); \
  } while (false)

#define CHORUS_CHECK_OP(a, op, b)                                                               \
  do {                                                                                          \
    const auto& chorus_a_ = (a);                                                                \
    const auto& chorus_b_ = (b);                                                                \
    if (!(chorus_a_ op chorus_b_)) [[unlikely]]                                                 \
      ::chorus::internal::check_failed(__FILE__, __LINE__, #a " " #op " " #b,                   \
                                       ::chorus::internal::check_values(chorus_a_, chorus_b_)); \
  } while (false)

#define CHORUS_CHECK_EQ(a, b) CHORUS_CHECK_OP(a, ==, b)
#define CHORUS_CHECK_NE(a, b) CHORUS_CHECK_OP(a, !=, b)
#define CHORUS_CHECK_LT(a, b) CHORUS_CHECK_OP(a, <, b)
#define CHORUS_CHECK_LE(a, b) CHORUS_CHECK_OP(a, <=, b)
#define CHORUS_CHECK_GT(a, b) CHORUS_CHECK_OP(a, >, b)
#define CHORUS_CHECK_GE(a, b) CHORUS_CHECK_OP(a, >=, b)

// For loops per token or per element: on in debug builds only.
#ifdef CHORUS_DEBUG_CHECKS
#define CHORUS_DCHECK(condition) CHORUS_CHECK(condition)
#else
#define CHORUS_DCHECK(condition) \
  do {                           \
  } while (false)
#endif
