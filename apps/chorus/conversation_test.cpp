#include "conversation.h"

#include <algorithm>
#include <gtest/gtest.h>

#include "chorus/generation_fields.h"
#include "exec/scripted_executor.h"
#include "text/detokenizer.h"

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
  }

  Conversation conversation() { return {"main", std::nullopt, runner_->open().value()}; }

  // A turn, to its end or the stop text; how many tokens the session held of its prompt.
  Position ask(Conversation& chat, const std::string& message, const std::string& stop = "") {
    Turn turn;
    turn.message = message;
    last_prompt_ = chat.prompt_for(*text_, message).value();
    turn.prompt = last_prompt_.text;
    const Position held = generate(chat, last_prompt_.tokens, turn, stop);
    turn.counts.reused = held;
    turn.counts.computed = static_cast<int32_t>(last_prompt_.tokens.size()) - held;
    turn.counts.generated = static_cast<int32_t>(last_tokens_.size());
    chat.add(std::move(turn));
    return held;
  }

  Position generate(Conversation& chat, const std::vector<TokenId>& prompt, Turn& turn,
                    const std::string& stop = "") {
    Session session = chat.take_session(prompt).value();
    const Position held = session.position();
    GenerationFields settings;
    settings.max_tokens = kAnswer;
    ChoicesPlan plan;
    plan.tokens.assign(prompt.begin() + held, prompt.end());
    plan.options = generation_options(settings, end_tokens_);
    plan.options.signal = signal_;
    if (!stop.empty()) plan.stops = {stop};
    PromptChoices answers(*runner_, text_, std::move(plan), std::move(session));
    answers.start(0);
    while (!answers.finished()) {
      const uint64_t seen = signal_->count();
      if (!answers.poll() && !answers.finished()) signal_->wait(seen);
    }
    const PromptChoices::Choice& answer = answers.choices()[0];
    EXPECT_TRUE(answer.error.ok()) << answer.error.to_string();
    last_tokens_ = answer.token_ids();
    // The session's context was the prompt, and nothing else.
    EXPECT_EQ(last_tokens_[0], scripted_next_token(prompt, {}, program_->vocabulary()));
    chat.give_back(answers.take_session(), prompt, last_tokens_);
    EXPECT_EQ(chat.num_held(), prompt.size() + last_tokens_.size());
    take_answer(answer, *text_, end_tokens_, turn);
    return held;
  }

  // A message whose answer begins with two plain tokens, and those.
  bool is_plain(const Turn& turn, std::string& first, std::string& second) const {
    first = text_->tokenizer().piece(turn.tokens[0]).value();
    second = text_->tokenizer().piece(turn.tokens[1]).value();
    return turn.tokens[0] > 2 && turn.tokens[1] > 2 && text::is_valid_utf8(first) &&
           text::is_valid_utf8(second) && first.find(second) == std::string::npos;
  }

  static constexpr int32_t kAnswer = 5;
  const SteadyClock clock_;
  std::shared_ptr<const Program> program_;
  std::shared_ptr<const TextModel> text_;
  std::unique_ptr<Runner> runner_;
  std::shared_ptr<UpdateSignal> signal_ = std::make_shared<UpdateSignal>();
  std::vector<TokenId> end_tokens_;
  ChatPrompt last_prompt_;
  std::vector<TokenId> last_tokens_;
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

TEST_F(ConversationTest, ASavedOneGoesOnAsIfItHadNotBeen) {
  Conversation chat = conversation();
  chat.set_system("be brief");
  ask(chat, "first");
  ask(chat, "second");
  const auto saved = chat.save();
  ASSERT_TRUE(saved.ok()) << saved.status().to_string();
  auto again = Conversation::restore("again", *saved, runner_->load(*saved).value());
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(again->name(), "again");
  EXPECT_EQ(again->num_held(), chat.num_held());
  ASSERT_EQ(again->turns().size(), 2u);
  for (const char* message : {"third", "fourth"}) {
    const size_t held = chat.num_held();
    ask(chat, message);
    const std::vector<TokenId> prompt = last_prompt_.tokens;
    EXPECT_EQ(static_cast<size_t>(ask(*again, message)), held);
    EXPECT_EQ(last_prompt_.tokens, prompt);
    EXPECT_EQ(again->turns().back().tokens, chat.turns().back().tokens);
  }
  // Turns from before are taken back like others.
  again->drop_turns(3);
  chat.drop_turns(3);
  ask(chat, "other");
  const std::vector<TokenId> prompt = last_prompt_.tokens;
  ask(*again, "other");
  EXPECT_EQ(last_prompt_.tokens, prompt);
}

TEST_F(ConversationTest, WhatWasTakenBackIsNotSaved) {
  Conversation chat = conversation();
  ask(chat, "first");
  const size_t held = chat.num_held();
  ask(chat, "secret");
  chat.drop_turns(1);
  EXPECT_GT(chat.num_held(), held);
  const auto saved = chat.save();
  ASSERT_TRUE(saved.ok());
  EXPECT_EQ(saved->tokens.size(), held);
  EXPECT_EQ(saved->notes.find("secret"), std::string::npos);
  EXPECT_EQ(chat.num_held(), held);
  EXPECT_EQ(static_cast<size_t>(ask(chat, "more")), held);
}

TEST_F(ConversationTest, OneWithoutMessagesIsNotRestored) {
  Conversation chat = conversation();
  ask(chat, "first");
  SavedSession saved = chat.save().value();
  saved.notes.clear();
  EXPECT_EQ(Conversation::restore("x", saved, runner_->load(saved).value()).status().field(),
            "notes");
  saved.notes = "{}";
  EXPECT_EQ(Conversation::restore("x", saved, runner_->load(saved).value()).status().code(),
            Code::kDataLoss);
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
  EXPECT_LT(held, prompt_size + kAnswer);
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
  int num_tried = 0;
  for (int i = 0; i < 300; ++i) {
    const std::string message = "m" + std::to_string(i);
    Conversation chat = conversation();
    ask(chat, message);
    std::string first;
    std::string stop;
    if (!is_plain(chat.turns()[0], first, stop)) continue;
    ++num_tried;
    SCOPED_TRACE(message);
    chat.drop_turns(1);
    ask(chat, message, stop);
    const Turn& turn = chat.turns()[0];
    EXPECT_EQ(turn.answer, first);
    EXPECT_EQ(turn.tokens, std::vector<TokenId>{last_tokens_[0]});
    EXPECT_EQ(turn.tail, "");
    // At once, while the engine may not have cut the surplus: a prompt that begins with all that
    // is held.
    std::vector<TokenId> prompt = last_prompt_.tokens;
    prompt.insert(prompt.end(), last_tokens_.begin(), last_tokens_.end());
    prompt.push_back(7);
    Turn next;
    EXPECT_EQ(generate(chat, prompt, next), static_cast<Position>(prompt.size() - 1));
  }
  EXPECT_GT(num_tried, 10);
}

TEST_F(ConversationTest, AnEndTokenIsNoPartOfTheAnswer) {
  Conversation chat = conversation();
  ask(chat, "first");
  const std::vector<TokenId> tokens = last_tokens_;
  chat.drop_turns(1);
  end_tokens_ = {tokens[2]};
  ask(chat, "first");
  const std::vector<TokenId> expected(tokens.begin(),
                                      std::find(tokens.begin(), tokens.end(), tokens[2]));
  EXPECT_EQ(chat.turns()[0].tokens, expected);
  EXPECT_EQ(last_tokens_.size(), expected.size() + 1);
}

}  // namespace
}  // namespace chorus::cli
