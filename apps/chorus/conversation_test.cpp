#include "conversation.h"

#include <gtest/gtest.h>

#include "exec/scripted_executor.h"

namespace chorus::cli {
namespace {

// A conversation over a scripted model, with the tokenizer and the template of a tiny one. A
// template's rewriting is played by answers that are not what was generated.
class ConversationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loaded = load_program(CHORUS_SOURCE_DIR "/tests/golden/tiny/tied_q4_1.gguf", {});
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    program_ = std::move(loaded).value();
    text_ = TextModel::create(*program_).value();
    ScriptedExecutor::Options options;
    options.vocabulary = program_->vocabulary();
    runner_ = Runner::create(std::make_unique<ScriptedExecutor>(options), {}, clock_).value();
    context_.emplace(JobContext{*runner_, clock_, text_.get(), {}, signal_, {}});
  }

  Conversation conversation() { return {"main", std::nullopt, runner_->open().value()}; }

  // A turn of so many tokens; how many tokens the session held of its prompt.
  Position ask(Conversation& chat, const std::string& message, int32_t count = 5) {
    Turn turn;
    turn.message = message;
    const ChatPrompt prompt = chat.prompt_for(*text_, message).value();
    turn.prompt = prompt.text;
    JobPrompt job_prompt;
    job_prompt.tokens = prompt.tokens;
    job_prompt.prompt.settings.max_tokens = count;
    GenerationJob job(*context_, job_prompt, 0);
    Session session = chat.take_session(prompt.tokens).value();
    const Position held = session.position();
    job.start(std::move(session));
    while (!job.finished()) {
      const uint64_t seen = signal_->count();
      if (!job.poll() && !job.finished()) signal_->wait(seen);
    }
    chat.give_back(std::move(job.session()), prompt.tokens, job.tokens());
    EXPECT_EQ(chat.num_held(), prompt.tokens.size() + static_cast<size_t>(count));
    take_answer(job, *text_, {}, turn);
    chat.add(std::move(turn));
    last_prompt_ = prompt;
    return held;
  }

  const SteadyClock clock_;
  std::shared_ptr<const Program> program_;
  std::unique_ptr<TextModel> text_;
  std::unique_ptr<Runner> runner_;
  std::shared_ptr<UpdateSignal> signal_ = std::make_shared<UpdateSignal>();
  std::optional<JobContext> context_;
  ChatPrompt last_prompt_;
};

TEST_F(ConversationTest, OnlyNewTokensAreComputed) {
  Conversation chat = conversation();
  EXPECT_EQ(ask(chat, "first"), 0);
  size_t held = chat.num_held();
  for (const char* message : {"second", "third", "fourth"}) {
    EXPECT_EQ(static_cast<size_t>(ask(chat, message)), held);
    held = chat.num_held();
  }
}

TEST_F(ConversationTest, APromptHasTheTokensThatWereGenerated) {
  Conversation chat = conversation();
  ask(chat, "first");
  const std::vector<TokenId> first = last_prompt_.tokens;
  const Turn turn = chat.turns()[0];
  ask(chat, "second");
  std::vector<TokenId> expected = first;
  expected.insert(expected.end(), turn.tokens.begin(), turn.tokens.end());
  const std::string rest = last_prompt_.text.substr(turn.prompt.size() + turn.answer.size());
  const auto ids =
      text_->tokenizer().encode(rest, {.parse_special = true, .add_special = false}).value();
  expected.insert(expected.end(), ids.begin(), ids.end());
  EXPECT_EQ(last_prompt_.tokens, expected);
}

TEST_F(ConversationTest, WhatIsTakenBackLeavesNoTrace) {
  Conversation fresh = conversation();
  ask(fresh, "first");
  ask(fresh, "second thing");
  const ChatPrompt expected = last_prompt_;
  Conversation chat = conversation();
  ask(chat, "first");
  ask(chat, "second thought");
  ask(chat, "third");
  chat.drop_turns(2);
  ask(chat, "second thing");
  EXPECT_EQ(last_prompt_.tokens, expected.tokens);
  EXPECT_EQ(chat.turns()[1].tokens, fresh.turns()[1].tokens);
  // The same again is reused, but for the token that is run for its logits.
  chat.drop_turns(1);
  EXPECT_EQ(static_cast<size_t>(ask(chat, "second thing")), expected.tokens.size() - 1);
}

TEST_F(ConversationTest, ForksShareWhatTheyHold) {
  Conversation chat = conversation();
  ask(chat, "first");
  Conversation other = chat.fork("other").value();
  EXPECT_EQ(other.name(), "other");
  EXPECT_EQ(other.num_held(), chat.num_held());
  EXPECT_EQ(static_cast<size_t>(ask(other, "one way")), chat.num_held());
  EXPECT_EQ(chat.turns().size(), 1u);
  const size_t held = chat.num_held();
  EXPECT_EQ(static_cast<size_t>(ask(chat, "another way")), held);
}

TEST_F(ConversationTest, AnAnswerThatIsNotAsGeneratedIsTokenised) {
  Conversation chat = conversation();
  ask(chat, "first");
  Turn turn = chat.turns()[0];
  const auto prompt_size = static_cast<Position>(last_prompt_.tokens.size());
  turn.answer = "something else";
  turn.prompt += "and a prompt that is not the beginning";
  chat.drop_turns(1);
  chat.add(turn);
  const Position held = ask(chat, "second");
  EXPECT_EQ(last_prompt_.tokens,
            text_->tokenizer()
                .encode(last_prompt_.text, {.parse_special = true, .add_special = false})
                .value());
  EXPECT_GE(held, prompt_size);
  EXPECT_LT(held, prompt_size + 5);
}

TEST_F(ConversationTest, ANewSystemMessageRewritesEverything) {
  Conversation chat = conversation();
  ask(chat, "first");
  chat.set_system("be brief");
  EXPECT_LT(ask(chat, "second"), 5);
  EXPECT_NE(last_prompt_.text.find("be brief"), std::string::npos);
  chat.set_system(std::nullopt);
  ask(chat, "third");
  EXPECT_EQ(last_prompt_.text.find("be brief"), std::string::npos);
}

TEST_F(ConversationTest, AStopTextIsNoPartOfTheAnswer) {
  Conversation chat = conversation();
  // A message whose answer has a plain second token.
  for (int i = 0; i < 200; ++i) {
    Conversation trial = conversation();
    ask(trial, "m" + std::to_string(i));
    const Turn& turn = trial.turns()[0];
    const std::string first(text_->tokenizer().piece(turn.tokens[0]).value());
    const std::string stop(text_->tokenizer().piece(turn.tokens[1]).value());
    if (!text::is_valid_utf8(first + stop) || first.empty() || stop.empty()) continue;
    if (first.find(stop) != std::string::npos || turn.tokens[0] < 3 || turn.tokens[1] < 3) continue;
    JobPrompt prompt;
    trial.drop_turns(1);
    prompt.tokens = trial.prompt_for(*text_, turn.message).value().tokens;
    prompt.prompt.settings.stop = {stop};
    GenerationJob job(*context_, prompt, 0);
    job.start(trial.take_session(prompt.tokens).value());
    while (!job.finished()) {
      const uint64_t seen = signal_->count();
      if (!job.poll() && !job.finished()) signal_->wait(seen);
    }
    ASSERT_EQ(job.finish(), FinishReason::kStop);
    Turn cut;
    take_answer(job, *text_, {}, cut);
    EXPECT_EQ(cut.answer, first);
    EXPECT_EQ(cut.tokens.size(), 1u);
    EXPECT_EQ(cut.tail, "");
    // The end token is the template's to write.
    take_answer(job, *text_, {job.tokens().back()}, cut);
    EXPECT_EQ(cut.tokens.size(), job.tokens().size() - 1);
    return;
  }
  FAIL() << "no message found";
}

}  // namespace
}  // namespace chorus::cli
