#include "flags.h"

#include <array>
#include <cstdlib>
#include <tuple>

#include "arguments.h"

namespace chorus::cli {

namespace {

constexpr int kMaxThreads = 512;
constexpr int64_t kMaxCount = 1 << 30;

// Parses `text` when it was given.
Status read_count(const char* flag, const std::string& text, int64_t low, int64_t high,
                  int32_t& value) {
  if (text.empty()) return Status();
  CHORUS_ASSIGN_OR_RETURN(const int64_t count, parse_count(flag, text, low, high));
  value = static_cast<int32_t>(count);
  return Status();
}

}  // namespace

void CommonFlags::declare(CommandLine& line, bool has_json) {
  line.group("Common");
  line.flag("--threads", threads_text_, "N",
            "worker threads, 1 to 512 (default: physical cores available to the process)");
  if (has_json) line.flag("--json", json, "results as JSON Lines on stdout");
  line.flag("--quiet", quiet, "no progress on stderr");
  line.flag("--log-level", log_level_text_, "LEVEL",
            "error, warning, info or debug (default: warning)");
}

Status CommonFlags::parse() {
  int32_t count = 0;
  CHORUS_RETURN_IF_ERROR(read_count("--threads", threads_text_, 1, kMaxThreads, count));
  threads = count;
  if (!log_level_text_.empty()) {
    CHORUS_ASSIGN_OR_RETURN(log_level, parse_log_level(log_level_text_));
  }
  return Status();
}

void EngineFlags::declare(CommandLine& line) {
  line.group("Numerics");
  line.flag("--activations", activations_, "TYPE",
            "int8 (default): inputs of quantised linear layers per 32 values; f32: exact, slow");
  line.flag("--kv-type", kv_type_, "TYPE",
            "bf16 (default), q8 (8-bit integers: half the memory, less exact) or f32");
  line.flag("--exact", exact_, "--activations f32 --kv-type f32");

  line.group("Engine");
  line.flag("--max-sessions", max_sessions_, "N", "sessions resident at once (default: 256)");
  line.flag("--max-batch-tokens", max_batch_tokens_, "N", "tokens in one step (default: 544)");
  line.flag("--prefill-chunk", prefill_chunk_, "N", "longest slice of a prompt in one step");
  line.flag("--max-decode-sequences", max_decode_sequences_, "N",
            "sessions that decode in one step (default: 32, or serve's --max-running if more)");
  line.flag("--target-step-ms", target_step_ms_, "N",
            "how long a step takes on prompt tokens while others decode (default: 100)");
  line.flag("--priority-age-ms", priority_age_ms_, "N",
            "waiting that counts as much as a priority higher by one (default: 30000)");
  line.flag("--shortest-first-ms", shortest_first_ms_, "N",
            "for each token of a request it stands as if it had come so much later (default: 0)");
  line.flag("--context", context_, "N",
            "tokens per session (default: the model's, as far as memory allows)");
  line.flag("--kv-memory", kv_memory_, "SIZE",
            "memory for KV blocks, such as 512MiB (default: from free memory)");
  line.flag("--kv-blocks", kv_blocks_, "N", "KV blocks per layer group, instead of --kv-memory");
  line.flag("--block-size", block_size_, "N", "cells per KV block: 1, 16 (default), 32 or 64");
  line.flag("--kv-layout", kv_layout_, "KIND",
            "paged (default), or sequence: one block per session, as long as the context");
  line.flag("--no-prefix-cache", no_prefix_cache_,
            "compute every prompt in full, also where KV of the same tokens is held");
}

Result<EngineOptions> EngineFlags::parse(const CommonFlags& common) const {
  EngineOptions options;
  options.threads = common.threads;
  if (const char* forced = std::getenv("CHORUS_FORCE_ISA"); forced != nullptr) {
    options.force_isa = forced;
  }
  if (!activations_.empty()) {
    CHORUS_ASSIGN_OR_RETURN(const int choice,
                            parse_choice("--activations", activations_, {"int8", "f32"}));
    options.activations = choice == 0 ? Activations::kInt8 : Activations::kF32;
  }
  if (!kv_type_.empty()) {
    CHORUS_ASSIGN_OR_RETURN(const int choice,
                            parse_choice("--kv-type", kv_type_, {"bf16", "f32", "q8"}));
    options.kv_type =
        std::array{KvType::kBf16, KvType::kF32, KvType::kQ8}[static_cast<size_t>(choice)];
  }
  if (exact_) {
    if (!activations_.empty() && options.activations != Activations::kF32) {
      return invalid_argument("--exact", "expected no --activations int8 beside it");
    }
    if (!kv_type_.empty() && options.kv_type != KvType::kF32) {
      return invalid_argument("--exact", "expected no --kv-type " + kv_type_ + " beside it");
    }
    options.activations = Activations::kF32;
    options.kv_type = KvType::kF32;
  }
  CHORUS_RETURN_IF_ERROR(
      read_count("--max-sessions", max_sessions_, 1, 1 << 20, options.max_sessions));
  CHORUS_RETURN_IF_ERROR(
      read_count("--max-batch-tokens", max_batch_tokens_, 2, 1 << 20, options.max_batch_tokens));
  CHORUS_RETURN_IF_ERROR(
      read_count("--prefill-chunk", prefill_chunk_, 1, 1 << 20, options.prefill_chunk));
  CHORUS_RETURN_IF_ERROR(read_count("--max-decode-sequences", max_decode_sequences_, 1, 1 << 20,
                                    options.max_decode_sequences));
  CHORUS_RETURN_IF_ERROR(
      read_count("--target-step-ms", target_step_ms_, 1, kMaxCount, options.target_step_ms));
  CHORUS_RETURN_IF_ERROR(
      read_count("--priority-age-ms", priority_age_ms_, 1, kMaxCount, options.priority_age_ms));
  CHORUS_RETURN_IF_ERROR(read_count("--shortest-first-ms", shortest_first_ms_, 0, kMaxCount,
                                    options.shortest_first_ms));
  CHORUS_RETURN_IF_ERROR(read_count("--context", context_, 1, kMaxCount, options.context));
  CHORUS_RETURN_IF_ERROR(read_count("--kv-blocks", kv_blocks_, 1, kMaxCount, options.kv_blocks));
  if (!kv_memory_.empty()) {
    if (!kv_blocks_.empty()) {
      return invalid_argument("--kv-memory", "expected no --kv-blocks beside it");
    }
    CHORUS_ASSIGN_OR_RETURN(options.kv_memory_bytes, parse_size("--kv-memory", kv_memory_));
  }
  options.prefix_cache = !no_prefix_cache_;
  if (!kv_layout_.empty()) {
    CHORUS_ASSIGN_OR_RETURN(const int choice,
                            parse_choice("--kv-layout", kv_layout_, {"paged", "sequence"}));
    options.kv_layout = choice == 0 ? KvLayout::kPaged : KvLayout::kSequence;
  }
  if (!block_size_.empty()) {
    CHORUS_ASSIGN_OR_RETURN(const int choice,
                            parse_choice("--block-size", block_size_, {"1", "16", "32", "64"}));
    constexpr int32_t kSizes[] = {1, 16, 32, 64};
    options.block_size = kSizes[choice];
  }
  return options;
}

void SamplingFlags::declare(CommandLine& line, bool for_chat) {
  line.group("Sampling");
  line.flag("--max-tokens", max_tokens_, "N",
            for_chat ? "most tokens of an answer (default: 1024, or what the context leaves)"
                     : "most tokens to generate (default: 256, or what the context leaves)");
  line.flag("--min-tokens", min_tokens_, "N",
            "no stop token and no stop text before so many; 0 (default): anywhere");
  line.flag("--temperature", temperature_, "X",
            for_chat ? "0: greedy, the likeliest token (default: 0.7)"
                     : "0 (default): greedy, the likeliest token");
  line.flag("--top-k", top_k_, "N", "draw from the N likeliest tokens; 0 (default): from all");
  line.flag("--typical-p", typical_p_, "X",
            "from those whose likelihood is nearest to the expected one, with this share of the "
            "probability; 1 (default): all");
  line.flag("--top-p", top_p_, "X",
            "from the fewest tokens that hold this share of the probability; 1 (default): all");
  line.flag("--min-p", min_p_, "X",
            "from those at least so likely, against the likeliest; 0 (default): all");
  line.flag("--presence-penalty", presence_penalty_, "X",
            "taken from the logits of tokens that were generated; -2 to 2, 0 (default): none");
  line.flag("--frequency-penalty", frequency_penalty_, "X",
            "the same for each time that the token was generated");
  line.flag("--repetition-penalty", repetition_penalty_, "X",
            "divides the logits of tokens of the prompt and of generated ones, or multiplies those "
            "below 0; 1 (default): none");
  line.flag("--logit-bias", logit_bias_, "ID=X",
            "add X, -100 to 100, to the logit of a token; repeatable");
  line.flag("--allowed-token", allowed_tokens_, "ID",
            "generate these tokens only; repeatable (default: all)");
  line.flag("--bad-word", bad_words_, "TEXT",
            "do not generate this text, alone or behind a space; repeatable");
  line.flag("--seed", seed_, "N",
            "of the random numbers; with one the result is repeatable (default: a random one)");
  line.flag("--stop", stop_, "TEXT", "end before this text; repeatable");
  line.flag("--stop-token", stop_tokens_, "ID",
            "end with this token, which is not shown, as with the model's own; repeatable");
  line.flag("--include-stop", include_stop_, "show the stop text or stop token that ends a text");
  line.flag("--show-special", show_special_, "show special tokens in texts");
  line.flag("--ignore-eos", ignore_eos_, "go on after the model's end token");
}

namespace {

// Of a flag that is repeated, as one word. One that is empty is refused like others, not left out.
std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : " ") + (word.empty() ? std::string("\"\"") : word);
  }
  return text;
}

}  // namespace

Result<GenerationFields> SamplingFlags::parse(const GenerationFields& defaults) const {
  GenerationFields fields = defaults;
  const auto take = [&](const char* flag, const char* name, const json::Value& value) {
    const Status status = set_generation_field(name, value, fields);
    return status.ok() ? status : Status(status.code(), flag, status.message());
  };
  const std::tuple<const char*, const char*, std::string> words[] = {
      {"--max-tokens", "max_tokens", max_tokens_},
      {"--min-tokens", "min_tokens", min_tokens_},
      {"--temperature", "temperature", temperature_},
      {"--top-k", "top_k", top_k_},
      {"--typical-p", "typical_p", typical_p_},
      {"--top-p", "top_p", top_p_},
      {"--min-p", "min_p", min_p_},
      {"--presence-penalty", "presence_penalty", presence_penalty_},
      {"--frequency-penalty", "frequency_penalty", frequency_penalty_},
      {"--repetition-penalty", "repetition_penalty", repetition_penalty_},
      {"--seed", "seed", seed_},
      {"--logit-bias", "logit_bias", joined(logit_bias_)},
      {"--allowed-token", "allowed_token_ids", joined(allowed_tokens_)},
      {"--stop-token", "stop_token_ids", joined(stop_tokens_)},
  };
  for (const auto& [flag, name, word] : words) {
    if (word.empty()) continue;
    CHORUS_RETURN_IF_ERROR(take(flag, name, generation_field_of_word(name, word)));
  }
  CHORUS_RETURN_IF_ERROR(take("--stop", "stop", json::Array(stop_.begin(), stop_.end())));
  CHORUS_RETURN_IF_ERROR(
      take("--bad-word", "bad_words", json::Array(bad_words_.begin(), bad_words_.end())));
  fields.include_stop_str_in_output = include_stop_;
  fields.skip_special_tokens = !show_special_;
  fields.ignore_eos = ignore_eos_;
  return fields;
}

}  // namespace chorus::cli
