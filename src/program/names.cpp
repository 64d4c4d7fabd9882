#include "program/names.h"

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/check.h"

namespace chorus {

namespace {

// Indexed by the enumerators.
constexpr std::array<std::string_view, 13> kOpNames = {
    "embed", "rms_norm", "linear", "rope",    "update_and_attend", "add",        "mul",
    "scale", "silu",     "gelu",   "sigmoid", "tanh_softcap",      "select_rows"};
constexpr std::array<std::string_view, kNumWeightTypes> kWeightTypeNames = {
    "f32", "q4_0", "q4_1", "q8_0", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k", "bf16", "f16"};
constexpr std::array<std::string_view, 2> kPackingNames = {"row_major", "r16k4"};
constexpr std::array<std::string_view, 2> kPairingNames = {"adjacent", "half"};

template <typename Enum, size_t kCount>
std::string_view name_of(Enum value, const std::array<std::string_view, kCount>& names) {
  const auto index = static_cast<size_t>(value);
  CHORUS_CHECK_LT(index, kCount);
  return names[index];
}

template <typename Enum, size_t kCount>
std::optional<Enum> value_of(std::string_view name,
                             const std::array<std::string_view, kCount>& names) {
  for (size_t i = 0; i < kCount; ++i) {
    if (names[i] == name) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

}  // namespace

std::string_view op_name(OpKind kind) { return name_of(kind, kOpNames); }
std::string_view weight_type_name(WeightType type) { return name_of(type, kWeightTypeNames); }
std::string_view packing_name(Packing packing) { return name_of(packing, kPackingNames); }
std::string_view pairing_name(RopePairing pairing) { return name_of(pairing, kPairingNames); }

std::string shown_type_name(WeightType type) {
  std::string name(weight_type_name(type));
  for (char& letter : name) {
    if (letter >= 'a' && letter <= 'z') letter = static_cast<char>(letter - 'a' + 'A');
  }
  return name;
}

std::optional<OpKind> parse_op_kind(std::string_view name) {
  return value_of<OpKind>(name, kOpNames);
}
std::optional<WeightType> parse_weight_type(std::string_view name) {
  return value_of<WeightType>(name, kWeightTypeNames);
}
std::optional<Packing> parse_packing(std::string_view name) {
  return value_of<Packing>(name, kPackingNames);
}
std::optional<RopePairing> parse_pairing(std::string_view name) {
  return value_of<RopePairing>(name, kPairingNames);
}

bool is_printable_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<uint8_t>(text[i]);
    if (lead < 0x80) {
      if ((lead < 0x20 && lead != '\n' && lead != '\r' && lead != '\t') || lead == 0x7f)
        return false;
      ++i;
      continue;
    }
    const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || text.size() - i < length) return false;
    uint32_t code = lead & (0xffu >> (length + 1));
    for (size_t k = 1; k < length; ++k) {
      const auto next = static_cast<uint8_t>(text[i + k]);
      if ((next & 0xc0) != 0x80) return false;
      code = code << 6 | (next & 0x3fu);
    }
    constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
    if (code < kSmallest[length] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) {
      return false;
    }
    i += length;
  }
  return true;
}

std::string quoted(std::string_view text) {
  constexpr size_t kMaxShown = 100;
  if (!is_printable_utf8(text)) return "text that cannot be shown";
  size_t end = text.size();
  if (end > kMaxShown) {
    end = kMaxShown;
    while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xc0) == 0x80) --end;  // whole characters
  }
  std::string shown(1, '"');
  shown.append(text.substr(0, end));
  shown.append(end < text.size() ? "...\"" : "\"");
  return shown;
}

}  // namespace chorus
