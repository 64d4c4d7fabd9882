// The flags that several verbs share: declared once, with one set of defaults.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "chorus/engine.h"
#include "chorus/generation_fields.h"
#include "command_line.h"
#include "exec/types.h"

namespace chorus::cli {

// The words given for a set of flags; turned into values by its parse(), after the whole line was
// read.
class CommonFlags {
 public:
  void declare(CommandLine& line, bool has_json);
  Status parse();

  int threads = 0;  // 0: not given
  bool json = false;
  bool quiet = false;
  LogLevel log_level = LogLevel::kWarning;

 private:
  std::string threads_text_;
  std::string log_level_text_;
};

// Numerics and sizes of the engine.
class EngineFlags {
 public:
  void declare(CommandLine& line);
  // Fills `options`; what was not given keeps its default.
  Result<EngineOptions> parse(const CommonFlags& common) const;

 private:
  std::string activations_, kv_type_, kv_layout_, block_size_, context_;
  std::string kv_memory_, kv_blocks_, max_sessions_, max_batch_tokens_, prefill_chunk_,
      max_decode_sequences_, target_step_ms_, priority_age_ms_, shortest_first_ms_;
  bool exact_ = false;
  bool no_prefix_cache_ = false;
};

class SamplingFlags {
 public:
  void declare(CommandLine& line) { declare(line, false); }
  // The same flags with the defaults of a chat, which its verb applies.
  void declare_for_chat(CommandLine& line) { declare(line, true); }
  // What was not given is as in `defaults`.
  Result<GenerationFields> parse(const GenerationFields& defaults = {}) const;
  bool has_temperature() const { return !temperature_.empty(); }

 private:
  void declare(CommandLine& line, bool for_chat);

  std::string max_tokens_, min_tokens_, temperature_, top_k_, typical_p_, top_p_, min_p_,
      presence_penalty_, frequency_penalty_, repetition_penalty_, seed_;
  std::vector<std::string> logit_bias_, allowed_tokens_, bad_words_, stop_, stop_tokens_;
  bool include_stop_ = false;
  bool show_special_ = false;
  bool ignore_eos_ = false;
};

}  // namespace chorus::cli
