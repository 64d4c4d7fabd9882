// Which kernels are chosen on the processors of an emulator. Built only where the tests run in one.
#include "cpu/kernels/neon.h"

#include <cstdlib>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "cpu/kernels/generic.h"
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/tested_sets.h"

namespace chorus::cpu {
namespace {

struct Expected {
  std::string cpu;
  std::vector<std::string> sets;  // of tested_sets()
  const Kernels* chosen;
};

TEST(Neon, IsChosenWhereTheProcessorHasIt) {
  const Expected all[] = {
      {"cortex-a53", {"portable", "generic"}, &portable_kernels()},
      {"cortex-a76", {"portable", "generic", "neon"}, &neon_dotprod_kernels()},
      {"max", {"portable", "generic", "neon", "neon without i8mm"}, &neon_i8mm_kernels()},
  };
  const char* cpu = std::getenv("QEMU_CPU");
  ASSERT_NE(cpu, nullptr);
  int found = 0;
  for (const Expected& expected : all) {
    if (expected.cpu != cpu) continue;
    ++found;
    std::vector<std::string> sets;
    for (const TestedSet& set : tested_sets()) sets.push_back(set.name);
    EXPECT_EQ(sets, expected.sets);
    const auto chosen = choose_isa("");
    ASSERT_TRUE(chosen.ok());
    EXPECT_EQ(&kernels_for(chosen.value()), expected.chosen);
    const auto forced = choose_isa("neon");
    EXPECT_EQ(forced.ok(), chosen.value() == Isa::kNeon);
    if (!forced.ok()) {
      EXPECT_EQ(forced.status().code(), Code::kInvalidArgument);
      EXPECT_EQ(forced.status().field(), "CHORUS_FORCE_ISA");
      EXPECT_EQ(forced.status().message(), "this processor does not have neon");
    }
  }
  EXPECT_EQ(found, 1) << cpu;
}

}  // namespace
}  // namespace chorus::cpu
