#include "tests/simulation/expect.h"

#include <cstdio>
#include <cstdlib>

namespace chorus::simulation {

void expectation_failed(const char* file, int line, const char* expression,
                        const std::string& detail) {
  std::fprintf(stderr, "\n%s:%d: expected %s\n  %s\n", file, line, expression, detail.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace chorus::simulation
