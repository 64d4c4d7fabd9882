// How a simulation says that something is wrong: it prints what, and aborts. The program that runs
// it adds the seed and the last events.
#pragma once

#include <string>

namespace chorus::simulation {

[[noreturn]] void expectation_failed(const char* file, int line, const char* expression,
                                     const std::string& detail);

}  // namespace chorus::simulation

// The second argument is a std::string, made only on failure.
#define SIM_EXPECT(condition, detail)                                                   \
  do {                                                                                  \
    if (!(condition)) [[unlikely]]                                                      \
      ::chorus::simulation::expectation_failed(__FILE__, __LINE__, #condition, detail); \
  } while (false)
