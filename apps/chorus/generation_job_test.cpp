#include "generation_job.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <set>

#include "exec/scripted_executor.h"
#include "prompt_job.h"
#include "text/detokenizer.h"

namespace chorus::cli {
namespace {

constexpr int32_t kVocabulary = 293;  // of the tiny model whose tokenizer is used

// A runner over a scripted model, and the text side of a real one.
class GenerationJobTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loaded = load_program(CHORUS_SOURCE_DIR "/tests/golden/tiny/tied_q4_1.gguf", {});
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    program_ = std::move(loaded).value();
    text_ = TextModel::create(*program_).value();
    ScriptedExecutor::Options options;
    options.vocabulary = kVocabulary;
    auto executor = std::make_unique<ScriptedExecutor>(options);
    executor_ = executor.get();
    runner_ = Runner::create(std::move(executor), {}, clock_).value();
  }

  // The text of the token that follows the prompt; a prompt is searched whose text is plain.
  std::string first_text() {
    for (TokenId id = 5; id < kVocabulary; ++id) {
      prompt_.tokens = std::vector<TokenId>{id, 6};
      const TokenId next = scripted_next_token(*prompt_.tokens, {}, kVocabulary);
      const std::vector<TokenId> ids = {next};
      const std::string text = text_->tokenizer().decode(ids).value();
      if (next >= 3 && !text.empty() && text::is_valid_utf8(text)) return text;
    }
    ADD_FAILURE() << "no prompt found";
    return "";
  }

  // The prompt's job with so many choices, in so many sessions.
  std::unique_ptr<PromptJob> start(int num_choices = 1, size_t places = 1) {
    context_.emplace(JobContext{*runner_, clock_, text_, {}, signal_, {}});
    context_->options.num_choices = num_choices;
    auto job = std::make_unique<PromptJob>(*context_, 0, prompt_, clock_.now_ns());
    job->start(places);
    return job;
  }

  void finish(PromptJob& job, size_t places = 1) {
    while (!job.finished()) {
      const uint64_t seen = signal_->count();
      job.start(places - std::min(places, job.num_sessions()));
      EXPECT_LE(job.num_sessions(), places);
      if (!job.poll()) signal_->wait(seen);
    }
  }

  const SteadyClock clock_;
  std::shared_ptr<const Program> program_;
  std::shared_ptr<const TextModel> text_;
  ScriptedExecutor* executor_ = nullptr;
  std::unique_ptr<Runner> runner_;
  std::shared_ptr<UpdateSignal> signal_ = std::make_shared<UpdateSignal>();
  Prompt prompt_;
  std::optional<JobContext> context_;
};

TEST_F(GenerationJobTest, AStopTextEndsWithItsToken) {
  prompt_.settings.stop = {first_text()};
  const auto prompt = start();
  finish(*prompt);
  const GenerationJob& job = *prompt->choices()[0];
  EXPECT_EQ(job.finish(), FinishReason::kStop);
  EXPECT_TRUE(job.error().ok());
  EXPECT_EQ(job.generated_tokens(), 1u);
  EXPECT_EQ(job.text(), "");
}

TEST_F(GenerationJobTest, AStopTextDoesNotHideAnError) {
  prompt_.settings.stop = {first_text()};
  executor_->add_fault({.kind = ScriptedFault::Kind::kFailInput,
                        .first_step = 1,
                        .num_steps = 1000,
                        .session = SessionId{1}});
  const auto prompt = start();
  // Nothing is read before the engine has failed: the stop text and the error come together.
  for (uint64_t seen = signal_->count(); runner_->metrics().failed == 0;) {
    seen = signal_->wait(seen);
  }
  finish(*prompt);
  const GenerationJob& job = *prompt->choices()[0];
  EXPECT_EQ(job.generated_tokens(), 1u);
  EXPECT_EQ(job.finish(), FinishReason::kError);
  EXPECT_FALSE(job.error().ok());
  EXPECT_EQ(job.result().find("finish_reason")->as_string(), "error");
}

TEST_F(GenerationJobTest, ALineThatCannotBeUsedIsReportedWithItsText) {
  prompt_.text = "hello";
  prompt_.status = invalid_argument("p: line 3.seed", "wrong");
  const auto prompt = start(3, 1);
  ASSERT_TRUE(prompt->finished());
  for (const auto& job : prompt->choices()) {
    EXPECT_EQ(job->result().find("prompt")->as_string(), "hello");
    EXPECT_EQ(job->result().find("error")->find("field")->as_string(), "p: line 3.seed");
  }
}

TEST_F(GenerationJobTest, ChoicesShareOnePrefill) {
  prompt_.tokens = std::vector<TokenId>(20, 7);
  prompt_.settings.seed = 5;
  prompt_.settings.sampling.temperature = 1;
  prompt_.settings.max_tokens = 6;
  std::vector<std::string> expected;
  int64_t consumed = 0;
  for (const size_t places : {8, 1, 2, 3}) {
    SCOPED_TRACE(places);
    const auto prompt = start(4, places);
    finish(*prompt, places);
    std::vector<std::string> found;
    for (const auto& job : prompt->choices()) {
      EXPECT_TRUE(job->error().ok()) << job->error().to_string();
      found.push_back(json::Value(job->ids()).dump());
    }
    if (expected.empty()) expected = found;
    EXPECT_EQ(found, expected);
    EXPECT_EQ(runner_->metrics().prompt_tokens - consumed, 20 + 3);
    consumed = runner_->metrics().prompt_tokens;
    EXPECT_EQ(prompt->num_sessions(), 0u);
  }
  EXPECT_EQ(std::set<std::string>(expected.begin(), expected.end()).size(), 4u);
}

TEST_F(GenerationJobTest, APromptThatFailsEndsAllItsChoices) {
  prompt_.tokens = std::vector<TokenId>{7, 8, 9};
  executor_->add_fault({.kind = ScriptedFault::Kind::kFailInput,
                        .first_step = 0,
                        .num_steps = 1,
                        .session = SessionId{1}});
  const auto prompt = start(3, 2);
  finish(*prompt, 2);
  for (const auto& job : prompt->choices()) {
    EXPECT_EQ(job->finish(), FinishReason::kError);
    EXPECT_EQ(job->error(), prompt->choices()[0]->error());
  }
  EXPECT_EQ(runner_->metrics().failed, 1);
}

TEST_F(GenerationJobTest, AnErrorAfterTheFirstTokenEndsItsChoiceAlone) {
  prompt_.tokens = std::vector<TokenId>{7, 8, 9};
  prompt_.settings.max_tokens = 5;
  executor_->add_fault({.kind = ScriptedFault::Kind::kFailInput,
                        .first_step = 2,
                        .num_steps = 1,
                        .session = SessionId{1}});
  const auto prompt = start(3, 4);
  finish(*prompt, 4);
  EXPECT_EQ(prompt->choices()[0]->finish(), FinishReason::kError);
  EXPECT_EQ(prompt->choices()[1]->finish(), FinishReason::kLength);
  EXPECT_EQ(prompt->choices()[2]->finish(), FinishReason::kLength);
}

TEST_F(GenerationJobTest, ADeadlineKeepsWhatWasDelivered) {
  prompt_.tokens = std::vector<TokenId>{7, 8, 9};
  prompt_.settings.max_tokens = 10;
  prompt_.settings.deadline_ms = 0;
  const auto prompt = start(2, 4);
  finish(*prompt, 4);
  for (const auto& job : prompt->choices()) {
    EXPECT_EQ(job->finish(), FinishReason::kCancelled);
    EXPECT_EQ(job->error().code(), Code::kDeadlineExceeded);
    EXPECT_EQ(job->error().message(), "expected to end within 0 ms, found 0 tokens by then");
  }
}

}  // namespace
}  // namespace chorus::cli
