// The names by which files and people call operators, weight types and packings.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "program/graph.h"

namespace chorus {

// "rms_norm", "q4_1", "r16k4", "half". Requires: an enumerator.
std::string_view op_name(OpKind kind);
std::string_view weight_type_name(WeightType type);
std::string_view packing_name(Packing packing);
std::string_view pairing_name(RopePairing pairing);

// The same type as people and GGUF call it: "Q4_1", "F32".
std::string shown_type_name(WeightType type);

// The inverse; nullopt for a name that this build does not know.
std::optional<OpKind> parse_op_kind(std::string_view name);
std::optional<WeightType> parse_weight_type(std::string_view name);
std::optional<Packing> parse_packing(std::string_view name);
std::optional<RopePairing> parse_pairing(std::string_view name);

// Whether `text` is well-formed UTF-8 (no surrogates, no overlong forms) without control characters
// except newline, carriage return and tab: fit to be shown.
bool is_printable_utf8(std::string_view text);

// `text` out of a file, for a message: quoted when it can be shown, cut after 100 bytes.
std::string quoted(std::string_view text);

}  // namespace chorus
