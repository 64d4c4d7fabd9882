// The rounding and denormal mode in which results are computed.
#pragma once

#if defined(__SSE__)
#include <xmmintrin.h>
#elif !defined(__aarch64__)
#include <cfenv>
#endif
#include <cstdint>

namespace chorus::cpu {

// While it lives, this thread rounds to nearest even, keeps subnormal numbers, and takes no
// floating point exception, whatever the program around it has set. Thread: made and destroyed on
// one.
class FloatMode {
 public:
#if defined(__SSE__)
  FloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~FloatMode() { _mm_setcsr(saved_); }
#elif defined(__aarch64__)
  FloatMode() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
  }
  ~FloatMode() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }
#else
  FloatMode() { std::feholdexcept(&saved_), std::fesetenv(FE_DFL_ENV); }
  ~FloatMode() { std::fesetenv(&saved_); }
#endif
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
#if defined(__SSE__)
  uint32_t saved_;
#elif defined(__aarch64__)
  uint64_t saved_;
#else
  std::fenv_t saved_;
#endif
};

}  // namespace chorus::cpu
