// A generation as text.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chorus/engine/generation.h"

namespace chorus {

// What a generation shows of its text, and what it must not say.
struct TextOptions {
  bool include_stop =
      false;  // the stop text that ended it, or the text of the stop token, is shown
  bool show_special = false;  // special tokens are shown
  // Texts that are not generated, with or without a space in front: no token completes one. None is
  // empty. Needs the model's tokenizer.
  std::vector<std::string> bad_words = {};
};

// Reads what a generation delivers and turns it into valid UTF-8, up to the first stop text. All
// of it is kept; the views it gives are valid until the next read() or poll().
// Move-only; it may outlive session and engine, and dropping it does not cancel.
// Thread: one at a time, cancel() any.
class Generation {
 public:
  struct State;
  explicit Generation(std::unique_ptr<State> state);  // as Engine::generate makes it
  Generation(Generation&& other) noexcept;
  Generation& operator=(Generation&& other) noexcept;
  ~Generation();

  // Blocks until something is new and takes it. False: it has finished, and all was taken.
  bool read();
  // The same without blocking; false also when there is nothing new.
  bool poll();

  // The text that the last read() or poll() added. May be empty: characters are shown whole, and
  // what may become a stop text is held back.
  std::string_view new_text() const;
  // The tokens that the last read() or poll() added.
  std::span<const TokenScore> new_tokens() const;

  // All text so far. A stop text and what follows it are left out, and so is a stop token; special
  // tokens are not shown. TextOptions may say otherwise.
  const std::string& text() const;
  // The tokens so far, with a stop token and the tokens of a stop text. likeliest_begin counts into
  // likeliest(). Until it has finished, the session may hold some more.
  std::span<const TokenScore> tokens() const;
  std::span<const TokenLogprob> likeliest() const;

  // Whether the end was taken. Then the session can be used again.
  bool finished() const;
  // kStop also for a stop text. Requires: finished().
  FinishReason finish_reason() const;
  // Which of the stop texts ended it, if one did.
  std::optional<size_t> stop_index() const;
  // Why, when the reason is kError, or kCancelled by a deadline.
  const Status& error() const;
  // Complete when finished.
  GenerationMetrics metrics() const;
  // Moves out the scores of prompt tokens, complete when finished.
  PromptScores take_prompt_scores();

  // As GenerationHandle::cancel.
  void cancel() const;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace chorus
