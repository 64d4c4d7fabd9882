// What a program may be at most. A reader refuses more before it allocates; each limit is well
// above any model that the layers above could run, and low enough that no product of two of them
// that is formed anywhere overflows 63 bits.
#pragma once

#include <cstdint>

namespace chorus {

inline constexpr uint64_t kMaxManifestBytes = uint64_t{64} << 20;
inline constexpr uint32_t kMaxOps = 1 << 16;
inline constexpr uint32_t kMaxValues = 1 << 17;
inline constexpr uint32_t kMaxWeights = 1 << 16;
inline constexpr uint32_t kMaxSegmentsPerLinear = 64;
inline constexpr uint32_t kMaxRopes = 1024;
inline constexpr uint32_t kMaxKvLayers = 4096;
inline constexpr uint32_t kMaxGroups = 64;
inline constexpr uint32_t kMaxMethods = 64;
inline constexpr uint32_t kMaxWidths = 256;    // of a method
inline constexpr int32_t kMaxWidth = 1 << 23;  // columns of a value; the vocabulary is one
inline constexpr int32_t kMaxVocabulary = kMaxWidth;
inline constexpr int32_t kMaxHeads = 1 << 14;
inline constexpr int32_t kMaxHeadDim = 1 << 13;
inline constexpr int32_t kMaxContext = 1 << 28;
inline constexpr int32_t kMaxStepTokens = 1 << 20;  // rows of one forward
inline constexpr uint32_t kMaxNameBytes = 1024;  // of weights, methods, the model, tokenizer kinds
inline constexpr uint32_t kMaxEndIds = 64;
inline constexpr uint32_t kMaxMerges = 1 << 25;
inline constexpr uint64_t kMaxTokenBytes = uint64_t{1} << 30;  // of all tokens, or merges, together
inline constexpr uint64_t kMaxDefinitionBytes = uint64_t{256} << 20;  // of a tokenizer.json
inline constexpr uint64_t kMaxTemplateBytes = uint64_t{4} << 20;

}  // namespace chorus
