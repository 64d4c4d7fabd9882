// How an engine and its generations are set up.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "chorus/engine/capacity.h"
#include "chorus/exec/executor.h"
#include "chorus/exec/types.h"

namespace chorus {

class EventLog;
class UpdateSignal;

// Limits of a Runner. 0: not given; derived from those given and from the executor.
struct RunnerOptions {
  int32_t max_batch_tokens = 0;      // tokens of one step
  int32_t max_decode_sequences = 0;  // sessions that decode in one step
  int32_t prefill_chunk = 0;         // most prompt tokens of one session in one input
  int32_t max_queued_generations =
      0;                          // waiting for blocks; more are refused. Default: max_sessions
  int32_t max_unread_tokens = 0;  // a generation pauses when so many wait for its reader
  // While anyone decodes, a step takes on prompt tokens so that it lasts about so long. Default:
  // 100.
  int32_t target_step_ms = 0;
  // After so long of waiting, a generation stands as one of a priority higher by one does that has
  // just come: no flow of higher ones keeps it waiting for ever. Default: 30000.
  int32_t priority_age_ms = 0;
  // Not 0: a generation stands as if it had come so much later for every token that it brings and
  // may generate, so that short ones go first, and the time that a long one may lose is bounded.
  int32_t shortest_first_ms = 0;
  // Told of everything that happens. Unset: nobody. Owners: the caller and the Runner.
  std::shared_ptr<EventLog> event_log = nullptr;
  bool prefix_cache = true;  // sessions of one salt share the KV of equal prefixes
  // From which the seeds of generations that bring none are drawn. Unset: one of the machine's.
  std::optional<uint64_t> seed = {};
};

// What is in force.
struct EffectiveOptions {
  int32_t max_batch_tokens = 0;
  int32_t max_decode_sequences = 0;
  int32_t prefill_chunk = 0;
  int32_t max_queued_generations = 0;
  int32_t max_unread_tokens = 0;
  int32_t target_step_ms = 0;
  int32_t priority_age_ms = 0;
  int32_t shortest_first_ms = 0;  // 0: off
  bool prefix_cache = false;      // asked for, and the executor has one
  ExecutorInfo executor;
  KvCapacity capacity;  // of the executor's pools
};

struct GenerationOptions {
  int32_t max_new_tokens = 256;
  // Its seed is not read, nor is what an engine adds. With min_tokens, no stop token comes before.
  SamplingParams sampling = {};
  std::optional<uint64_t> seed = {};      // unset: drawn at random
  std::vector<TokenId> stop_tokens = {};  // any of them ends the generation, and is delivered
  bool ignore_stop_tokens = false;
  // Prompt tokens at this position of the session and later are scored. The first token of a
  // session cannot be.
  std::optional<Position> score_from = {};
  // Of two generations that want the same blocks, the one of higher priority has them, within
  // RunnerOptions::priority_age_ms; ties go to the one that came first.
  int32_t priority = 0;
  // When what it answers came, by the runner's clock, if it waited somewhere before it was
  // submitted: its deadline and all times from its submission count from then. Unset: the call.
  std::optional<int64_t> arrived_ns = {};
  // Time from submission after which it ends with reason cancelled and error kDeadlineExceeded,
  // keeping what was delivered; waiting in the queue counts. Unset: none.
  std::optional<int64_t> deadline_ns = {};
  // Notified of every update. Owners: the caller and the generations that carry it.
  std::shared_ptr<UpdateSignal> signal = nullptr;
};

}  // namespace chorus
