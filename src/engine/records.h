// What the engine thread keeps for each session. Internal to the engine. Thread: engine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/generation_state.h"
#include "engine/port.h"

namespace chorus {

// The generation of a session that was submitted and has not ended. Its token vectors are shared
// with the inputs made from it, its state with the handles.
struct LiveGeneration {
  std::shared_ptr<GenerationState> state;
  std::shared_ptr<const std::vector<TokenId>> tokens;  // the pending token, then those given
  std::shared_ptr<std::vector<TokenId>> next_token;    // [1], the input of each decode
  Position base = 0;                                   // position of tokens[0]
  Position prompt_end = 0;
  int32_t num_prompt = 0;  // tokens given
  int32_t max_new_tokens = 0;
  int32_t finish_at = 0;  // as asked for; 0: not
  int32_t num_delivered = 0;
  bool is_running = false;  // admitted
  bool is_paused = false;   // waits for its reader
  uint64_t seed = 0;
  std::optional<int64_t> first_step_ns;
  int64_t first_token_ns = 0;
  int64_t last_token_ns = 0;
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
  Status broken;  // not ok: the executor has no such session
  Position executor_length = 0;
  Position context = 0;
  TokenId pending = 0;  // valid when context > executor_length
  int32_t reserved_blocks = 0;
  std::optional<LiveGeneration> live;
  EndedGeneration ended;
};

// What a reader is to be told once the step is accounted for.
struct Delivery {
  std::shared_ptr<GenerationState> state;  // owners: as above
  SessionRecord* continues = nullptr;      // null: the generation has ended
  int32_t first_token = 0;                 // into the tokens of the step's output
  int32_t num_tokens = 0;
  std::optional<Ending> ending;
};

}  // namespace chorus
