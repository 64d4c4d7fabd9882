#include "generation_job.h"

#include <gtest/gtest.h>

#include "exec/scripted_executor.h"

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

  std::unique_ptr<GenerationJob> start() {
    auto job = std::make_unique<GenerationJob>(0, prompt_, JobOptions(), text_.get());
    job->start(*runner_, {}, signal_);
    return job;
  }

  void finish(GenerationJob& job) {
    while (!job.finished()) {
      const uint64_t seen = signal_->count();
      if (!job.poll() && !job.finished()) signal_->wait(seen);
    }
  }

  const SteadyClock clock_;
  std::shared_ptr<const Program> program_;
  std::unique_ptr<TextModel> text_;
  ScriptedExecutor* executor_ = nullptr;
  std::unique_ptr<Runner> runner_;
  std::shared_ptr<UpdateSignal> signal_ = std::make_shared<UpdateSignal>();
  Prompt prompt_;
};

TEST_F(GenerationJobTest, AStopTextEndsWithItsToken) {
  prompt_.settings.stop = {first_text()};
  const auto job = start();
  finish(*job);
  EXPECT_EQ(job->finish(), FinishReason::kStop);
  EXPECT_TRUE(job->error().ok());
  EXPECT_EQ(job->generated_tokens(), 1u);
  EXPECT_EQ(job->text(), "");
}

TEST_F(GenerationJobTest, AStopTextDoesNotHideAnError) {
  prompt_.settings.stop = {first_text()};
  executor_->add_fault({.kind = ScriptedFault::Kind::kFailInput,
                        .first_step = 1,
                        .num_steps = 1000,
                        .session = SessionId{1}});
  const auto job = start();
  // Nothing is read before the engine has failed: the stop text and the error come together.
  for (uint64_t seen = signal_->count(); runner_->metrics().failed == 0;) {
    seen = signal_->wait(seen);
  }
  finish(*job);
  EXPECT_EQ(job->generated_tokens(), 1u);
  EXPECT_EQ(job->finish(), FinishReason::kError);
  EXPECT_FALSE(job->error().ok());
  EXPECT_EQ(job->result().find("finish_reason")->as_string(), "error");
}

TEST_F(GenerationJobTest, ALineThatCannotBeUsedIsReportedWithItsText) {
  prompt_.text = "hello";
  prompt_.status = invalid_argument("p: line 3.seed", "wrong");
  const auto job = start();
  ASSERT_TRUE(job->finished());
  EXPECT_EQ(job->result().find("prompt")->as_string(), "hello");
  EXPECT_EQ(job->result().find("error")->find("field")->as_string(), "p: line 3.seed");
}

}  // namespace
}  // namespace chorus::cli
