// The engine as an application sees it: a model on this machine, ready for sessions.
//
//   auto engine = chorus::Engine::open("model.gguf");
//   auto session = (*engine)->open_session();
//   auto generation = (*engine)->generate(*session, "Once upon a time", {.max_new_tokens = 40});
//   while (generation->read()) std::cout << generation->new_text();
//
// Errors are values (chorus/base/result.h), and nothing throws; where memory ends, so does the
// process. Tokens alone need no more than Session::generate and its GenerationHandle.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chorus/base/clock.h"
#include "chorus/base/result.h"
#include "chorus/engine/runner.h"
#include "chorus/engine_options.h"
#include "chorus/generation.h"
#include "chorus/program.h"
#include "chorus/text/types.h"

namespace chorus {

class TextModel;

// The version of the library, such as "0.1.0". Static, with a NUL behind it.
std::string_view version();

// A program on the CPU backend: Runner, executor and module. Its sessions and generations may
// outlive it, and then refuse everything with kUnavailable. Thread: any.
class Engine {
 public:
  // Loads or exports a model (see load_program) and starts an engine on it. Errors: those of
  // load_program, and of create.
  static Result<std::unique_ptr<Engine>> open(const std::string& model,
                                              const EngineOptions& options = {});

  // An engine on a program, which several may share. Errors: kInvalidArgument with the option as
  // field (kv_blocks, context, force_isa, ...); kResourceExhausted when memory is short;
  // kUnimplemented for a program that this backend cannot run. `clock` outlives the engine, its
  // sessions and its generations.
  static Result<std::unique_ptr<Engine>> create(std::shared_ptr<const Program> program,
                                                const EngineOptions& options, const Clock& clock);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // ---- Sessions ----

  // An empty session. Errors: those of Runner::open.
  Result<Session> open_session(const SessionOptions& options = {}) {
    return runner_->open(options);
  }

  // Consumes the prompt in the session and generates text. Where options.stop_tokens is empty it is
  // the model's end_tokens; a max_new_tokens of 0 is 256, or fewer where the session has not the
  // room. The text ends before the first of `stops`, if one comes that is not complete within the
  // first options.sampling.min_tokens tokens.
  // A text is tokenised with its special tokens recognised, and begins as the model wants it when
  // the session is empty. Errors: those of Session::generate; of tokenize; kInvalidArgument
  // (stop[i], bad_words[i]) for an empty one; kUnimplemented (tokenizer) for text, stops or bad
  // words where the model has no vocabulary: tokens go without.
  Result<Generation> generate(Session& session, std::string_view prompt,
                              GenerationOptions options = {}, std::vector<std::string> stops = {},
                              const TextOptions& text_options = {});
  Result<Generation> generate(Session& session, std::vector<TokenId> prompt,
                              GenerationOptions options = {}, std::vector<std::string> stops = {},
                              const TextOptions& text_options = {});

  // Session::append, with its end to be read as that of generate.
  Result<Generation> append(Session& session, std::vector<TokenId> tokens,
                            const GenerationOptions& options = {});

  // ---- Text ----
  // kUnimplemented or kDataLoss with field tokenizer where the model's vocabulary is absent or
  // cannot be used.

  Result<std::vector<TokenId>> tokenize(std::string_view text,
                                        const text::EncodeOptions& options = {}) const;
  // Valid UTF-8: bytes that are none show as U+FFFD. kInvalidArgument on tokens[i].
  Result<std::string> detokenize(std::span<const TokenId> tokens) const;
  // The model's chat template over the messages, ready for the answer, to be tokenised with
  // {.parse_special = true, .add_special = false}. kUnimplemented (chat_template) where the model
  // has none; kInvalidArgument (messages) for what it refuses.
  Result<std::string> render_chat(std::span<const text::ChatMessage> messages) const;

  // ---- Facts ----

  const EngineSettings& settings() const { return settings_; }
  // The state after the last step. Never waits for one.
  RunnerMetrics metrics() const { return runner_->metrics(); }
  Runner& runner() { return *runner_; }
  const Program& program() const { return *program_; }

 private:
  struct Text;

  explicit Engine(std::shared_ptr<const Program> program);
  Result<std::shared_ptr<const TextModel>> text() const;

  std::shared_ptr<const Program> program_;  // owners: this engine, its module, and the caller
  EngineSettings settings_;
  std::unique_ptr<Text> text_;  // made when it is first needed
  std::unique_ptr<Module> module_;
  std::unique_ptr<Runner> runner_;  // last: its thread uses all of the above
};

}  // namespace chorus
