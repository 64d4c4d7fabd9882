#include "exporter/end_tokens.h"

#include <algorithm>
#include <array>

#include "program/limits.h"

namespace chorus {

namespace {

constexpr std::array<std::string_view, 16> kEndTexts = {
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>",      "<|end|>",           "<|endoftext|>", "<|eos|>",
    "<EOT>",      "_<EOT>",     "<|end_of_text|>", "<end_of_turn>",     "<eos>",         "</s>",
    "<|eot|>",    "<|eom|>",    "<turn|>",         "<end_of_utterance>"};

}  // namespace

bool ends_a_turn(std::string_view text) {
  return std::find(kEndTexts.begin(), kEndTexts.end(), text) != kEndTexts.end();
}

void add_end_id(TokenizerFacts& facts, int32_t id) {
  const auto& ids = facts.end_ids;
  const bool known =
      id == facts.eos || id == facts.eot || std::find(ids.begin(), ids.end(), id) != ids.end();
  if (!known && ids.size() < kMaxEndIds) facts.end_ids.push_back(id);
}

}  // namespace chorus
