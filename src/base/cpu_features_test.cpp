#include "base/cpu_features.h"

#include <gtest/gtest.h>

namespace chorus {
namespace {

TEST(CpuFeatures, GenericRunsEverywhere) {
  EXPECT_TRUE(isa_supported(Isa::kGeneric));
  ASSERT_TRUE(choose_isa("generic").ok());
  EXPECT_EQ(choose_isa("generic").value(), Isa::kGeneric);
}

TEST(CpuFeatures, ChoosesTheBestSupportedSet) {
  const Isa best = choose_isa("").value();
  EXPECT_TRUE(isa_supported(best));
  for (const Isa isa : built_isas()) {
    if (!isa_supported(isa)) continue;
    EXPECT_LE(static_cast<int>(isa), static_cast<int>(best));
  }
}

TEST(CpuFeatures, RefusesSetsThatAreNotBuilt) {
  for (const char* name : {"avx2", "NEON", "AVX512", "sse"}) {
    const auto result = choose_isa(name);
    ASSERT_FALSE(result.ok()) << name;
    EXPECT_EQ(result.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(result.status().field(), "CHORUS_FORCE_ISA");
    EXPECT_NE(result.status().message().find(name), std::string::npos);
  }
}

TEST(CpuFeatures, RefusesASetThisProcessorLacks) {
  for (const Isa isa : {Isa::kGeneric, Isa::kAvx512, Isa::kNeon}) {
    const auto result = choose_isa(isa_name(isa));
    EXPECT_EQ(result.ok(), isa_supported(isa)) << isa_name(isa);
    if (result.ok()) {
      EXPECT_EQ(result.value(), isa);
    }
  }
}

TEST(CpuFeatures, AtLeastOneCore) { EXPECT_GE(available_cores(), 1); }

}  // namespace
}  // namespace chorus
