// The rules that a graph obeys before a backend sees it.
#pragma once

#include <span>

#include "base/result.h"
#include "program/graph.h"

namespace chorus {

// What holds when this is ok:
// 1. Values are produced exactly once, in the order of their ids, and read only afterwards.
// 2. Every operator has the inputs, outputs and weights of its kind; shapes, heads, ropes and
//    weights agree; fields that its kind does not use have their defaults; numbers are finite.
// 3. There is exactly one select_rows. Before it all values have rows T, after it all have rows K
// and
//    no value from before it but its input is read.
// 4. The last operator has one output: logits [K, vocabulary]. Embed tables have `vocabulary` rows.
// 5. Every KV layer is written by exactly one update_and_attend and is in exactly one layer group.
// Weights' own sizes are checked elsewhere (check_manifest).
// Errors: kDataLoss; the field is a path such as "ops[3] (rope).rope".
Status check_graph(const Graph& graph, std::span<const Weight> weights, int32_t vocabulary);

}  // namespace chorus
