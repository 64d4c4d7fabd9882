// What the engine thread keeps for each session. Internal to the engine. Thread: engine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/generation_state.h"
#include "engine/port.h"
#include "engine/queue_order.h"

namespace chorus {

// The generation of a session that was submitted and has not ended. Its token vectors are shared
// with the inputs made from it, its state with the handles.
struct LiveGeneration {
  // A running generation that computes the same tokens and is further on: this one waits until it
  // has got to `end`, and then takes the KV of those from the prefix index.
  struct Leader {
    uint64_t session = 0;     // key; 0: there is none
    uint64_t generation = 0;  // number
    Position end = 0;         // a whole number of blocks
  };

  std::shared_ptr<GenerationState> state;
  Standing standing;
  std::vector<TokenId> prompt;                         // the tokens given
  std::shared_ptr<const std::vector<TokenId>> tokens;  // what is fed before the next decode
  std::shared_ptr<std::vector<TokenId>> next_token;    // [1], the input of each decode
  Position base = 0;                                   // position of tokens[0]
  Position fed_end = 0;                                // of what was submitted of them
  Leader leader;
  Position prompt_begin = 0;  // the context before it
  Position prompt_end = 0;
  int32_t max_new_tokens = 0;
  int32_t finish_at = 0;  // as asked for; 0: not
  int32_t num_delivered = 0;
  Position next_score = 0;  // tokens before it are not scored, or were
  int32_t overtaken = 0;    // by generations behind it in the queue, since it came to its head
  int32_t preemptions = 0;
  int32_t recomputed_tokens = 0;
  int32_t cached_tokens = 0;
  bool was_queried = false;   // the prefix index was asked for its prompt
  bool was_admitted = false;  // has had blocks, and holds no place in the queue
  bool is_running = false;    // has been given blocks; else it waits for them
  bool is_paused = false;     // waits for its reader
  std::optional<int64_t> deadline_ns;
  uint64_t seed = 0;
  std::optional<int64_t> first_step_ns;
  int64_t first_token_ns = 0;
  int64_t last_token_ns = 0;
  std::optional<int64_t> itl_ns;  // of the update that is being made

  Position tokens_end() const {
    return tokens == nullptr ? 0 : base + static_cast<Position>(tokens->size());
  }
};

// The generation that ended last, until the session's next one: finish_at may still cut it.
struct EndedGeneration {
  uint64_t number = 0;
  Position prompt_end = 0;
  int32_t num_delivered = 0;
};

struct SessionRecord {
  std::shared_ptr<SessionShared> shared;  // owners: this and the Session
  SessionId id{};
  SessionOptions options;        // as the executor has them
  Status broken;                 // not ok: the executor has no such session
  bool is_suspended = false;     // nor has it one then; a live generation waits
  std::vector<TokenId> context;  // what was given and delivered
  SamplingParams sampling;       // of the last generation that was admitted
  Position executor_length = 0;  // tokens whose KV the executor holds
  // Not 0: that many were taken from the prefix index, it holds no others, and they may be tokens
  // of the prompt of the live generation that are not yet context.
  Position attached = 0;
  bool was_loaded = false;  // what the executor holds descends from a file, and is in no index
  Position computed = 0;    // of the context, tokens whose KV was ever computed
  uint64_t last_used = 0;   // counts ends of generations, clones and rewinds
  std::optional<LiveGeneration> live;
  EndedGeneration ended;

  Position position() const { return static_cast<Position>(context.size()); }
  bool is_in_executor() const { return broken.ok() && !is_suspended; }
};

// What a reader is to be told once the step is accounted for.
struct Delivery {
  std::shared_ptr<GenerationState> state;  // owners: as above
  SessionRecord* continues = nullptr;      // null: the generation has ended
  int32_t first_token = 0;                 // into the tokens of the step's output
  int32_t num_tokens = 0;
  Progress progress;
  std::optional<Ending> ending;
};

}  // namespace chorus
