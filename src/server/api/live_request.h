// A request that generates, from the moment it is accepted to the end of its answer.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "chorus/prompt_choices.h"
#include "engine/queue_order.h"
#include "server/api/admission.h"
#include "server/api/answers.h"
#include "server/api/choice_output.h"
#include "server/api/errors.h"
#include "server/http/exchange.h"

namespace chorus::api {

struct PlannedPrompt {
  ChoicesPlan plan;
  Echo echo;
};

// Read, checked and tokenised: what is left is to run it.
struct AcceptedRequest {
  std::shared_ptr<http::Exchange> exchange;
  std::shared_ptr<Ticket> ticket;  // its place; let go with the request
  AnswerHead head;
  ChoiceFormat format;
  std::vector<PlannedPrompt> prompts;  // one at least
  int32_t num_choices = 1;             // of each prompt, to be answered with
  bool stream = false;
  bool include_usage = false;
  int32_t priority = 0;
  int64_t arrived_ns = 0;
  std::optional<int64_t> deadline_ns;    // by the clock
  std::optional<int64_t> num_truncated;  // tokens taken off the prompts, where that was asked for

  // A held session, in which the only prompt goes on. It is handed to `give_back`, once, when
  // nothing runs in it any more; what that returns goes into the answer as "session".
  Session session;
  int64_t num_held = 0;  // tokens that it keeps
  std::function<json::Value(PromptChoices&)> give_back;
  bool answers_with_session = false;  // which is then the whole answer
};

// What all requests share; it outlives them.
struct LiveContext {
  Runner& runner;
  const Clock& clock;
  std::shared_ptr<const TextModel> text;
  size_t max_unsent_bytes;
  int64_t ping_interval_ns;
  size_t max_sessions;  // of one request
};

// Thread: the delivery thread.
class LiveRequest {
 public:
  // `number`: in the order in which they are taken up.
  LiveRequest(const LiveContext& context, AcceptedRequest accepted, uint64_t number);
  ~LiveRequest();

  const Standing& standing() const { return standing_; }
  // Whether it holds a session of the engine, or did.
  bool has_begun() const { return has_begun_; }
  // Sessions that it holds, a client's not counted.
  size_t num_sessions() const;
  bool needs_place() const { return !accepted_.session.valid() && accepted_.give_back == nullptr; }
  // Whether its place is of use to others: what has been answered only ends.
  bool can_give_way() const { return phase_ == Phase::kLive; }
  bool is_suspended() const { return is_suspended_; }
  // Sessions that have to be free for it to begin, or to go on.
  size_t num_needed() const;

  // Starts what can be started with up to `places` sessions more, and goes on after suspend().
  void start(size_t places);
  // Waits from here on: its generations are preempted, and its sessions' places free, until
  // start().
  void suspend();
  // Takes what the engine delivered and writes what can be written. A client that has left ends
  // everything, one that does not read lets its generations wait.
  void poll();
  // Looks at the time: for the deadline of a request that waits, and for pings.
  void tick();
  // Ends it with an error.
  void fail(const ApiError& error);
  // The answer has ended and nothing runs.
  bool done() const { return phase_ == Phase::kDone; }

  // As /slots shows it.
  json::Value to_json() const;

 private:
  enum class Phase : uint8_t {
    kLive,
    kEnding,  // answered; the generation in a client's session still has to end
    kDone,
  };

  void resume(size_t& places);
  void check_failure();
  void begin_stream();
  void write(std::string bytes);
  void write_news();
  void complete();
  void respond_whole();
  json::Array whole_choices();
  std::vector<size_t> answered_choices(const PromptChoices& prompt) const;
  void end_stream();
  void leave();
  void let_go();
  bool all_finished() const;
  TokenCounts counts() const;
  void add_log_fields(std::string_view finish);
  int32_t index_of(size_t prompt, size_t choice) const;

  const LiveContext& context_;
  AcceptedRequest accepted_;
  const Standing standing_;
  std::vector<std::unique_ptr<PromptChoices>> prompts_;
  std::vector<std::vector<ChoiceOutput>> outputs_;  // of a stream: [prompt][choice]
  Phase phase_ = Phase::kLive;
  bool has_begun_ = false;
  bool is_suspended_ = false;
  bool stream_has_begun_ = false;
  int64_t last_write_ns_ = 0;
};

}  // namespace chorus::api
