// The plain meaning of a graph: every operator in double over the whole history of one sequence,
// without cache, blocks, tiles or quantised activations. An oracle for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "exec/types.h"
#include "program/program.h"

namespace chorus::cpu {

// Logits of every position, [tokens.size()][vocabulary].
std::vector<std::vector<double>> eager_logits(const Program& program,
                                              std::span<const TokenId> tokens);

}  // namespace chorus::cpu
