#include "saved_chat.h"

#include <gtest/gtest.h>

namespace chorus::cli {
namespace {

std::vector<Turn> some_turns() {
  std::vector<Turn> turns(3);
  turns[0].message = "héllo \"there\"\n";
  turns[0].answer = "one€two";
  turns[0].prompt = "<u>héllo</u>\xe2\x82\xac";
  turns[0].tokens = {5, 0, 292};
  // A stop text was found within the bytes of a character's tokens.
  turns[0].tail = turns[0].answer.substr(5);
  turns[0].counts = {0, 12, 3, 71.25};
  turns[1].message = "more";
  turns[1].choice = 4294967295u;
  turns[1].answer = "x";
  // Ends like the one before up to the middle of a character.
  turns[1].prompt = "<u>héllo</u>\xe2\x82\xad and so on";
  turns[1].counts = {15, 7, 1, 0};
  turns[2].message = "again";
  turns[2].prompt = "shares nothing";
  return turns;
}

TEST(ChatNotes, GiveBackTheTurns) {
  for (const std::optional<std::string>& system :
       {std::optional<std::string>(), std::optional<std::string>(""),
        std::optional<std::string>("be \\brief")}) {
    const std::vector<Turn> turns = some_turns();
    const auto chat = read_chat_notes(chat_notes(system, turns));
    ASSERT_TRUE(chat.ok()) << chat.status().to_string();
    EXPECT_EQ(chat->system, system);
    ASSERT_EQ(chat->turns.size(), turns.size());
    for (size_t i = 0; i < turns.size(); ++i) {
      const Turn& found = chat->turns[i];
      EXPECT_EQ(found.message, turns[i].message);
      EXPECT_EQ(found.choice, turns[i].choice);
      EXPECT_EQ(found.answer, turns[i].answer);
      EXPECT_EQ(found.prompt, turns[i].prompt);
      EXPECT_EQ(found.tokens, turns[i].tokens);
      EXPECT_EQ(found.tail, turns[i].tail);
      EXPECT_EQ(found.counts.reused, turns[i].counts.reused);
      EXPECT_EQ(found.counts.computed, turns[i].counts.computed);
      EXPECT_EQ(found.counts.generated, turns[i].counts.generated);
      EXPECT_EQ(found.counts.tokens_per_s, turns[i].counts.tokens_per_s);
    }
  }
}

// The prompts of a long chat each begin with the one before.
TEST(ChatNotes, DoNotRepeatThePrompts) {
  std::vector<Turn> turns(100);
  std::string prompt;
  for (Turn& turn : turns) {
    prompt += std::string(1000, 'a');
    turn.prompt = prompt;
  }
  const std::string notes = chat_notes(std::nullopt, turns);
  EXPECT_LT(notes.size(), 100u * 1300);
  EXPECT_EQ(read_chat_notes(notes)->turns.back().prompt, prompt);
}

TEST(ChatNotes, AreMadeOfMessages) {
  using Messages = std::vector<text::ChatMessage>;
  Turn last;
  last.answer = "fine";
  last.prompt = "p";
  const auto read = [&](const Messages& messages) {
    return read_chat_notes(notes_of_messages(messages, last)).value();
  };
  SavedChat chat = read({{"user", "how"}});
  EXPECT_FALSE(chat.system.has_value());
  ASSERT_EQ(chat.turns.size(), 1u);
  EXPECT_EQ(chat.turns[0].message, "how");
  EXPECT_EQ(chat.turns[0].answer, "fine");
  chat = read({{"system", "s"}, {"user", "a"}, {"assistant", "b"}, {"user", "c"}});
  EXPECT_EQ(chat.system, "s");
  ASSERT_EQ(chat.turns.size(), 2u);
  EXPECT_EQ(chat.turns[0].answer, "b");
  EXPECT_EQ(chat.turns[0].prompt, "");
  EXPECT_EQ(chat.turns[1].message, "c");
  EXPECT_EQ(chat.turns[1].prompt, "p");
  for (const Messages& other :
       {Messages{}, Messages{{"system", "s"}}, Messages{{"assistant", "b"}},
        Messages{{"user", "a"}, {"user", "b"}}, Messages{{"user", "a"}, {"assistant", "b"}},
        Messages{{"user", "a"}, {"user", "b"}, {"user", "c"}}}) {
    EXPECT_EQ(notes_of_messages(other, last), "");
  }
}

TEST(ChatNotes, AreRefusedByField) {
  const std::string good = chat_notes("s", some_turns());
  const auto with = [&](const std::string& part, const std::string& other) {
    std::string notes = good;
    const size_t at = notes.find(part);
    EXPECT_NE(at, std::string::npos) << part;
    notes.replace(at, part.size(), other);
    const auto chat = read_chat_notes(notes);
    EXPECT_TRUE(chat.ok() || chat.status().code() == Code::kDataLoss);
    return chat.ok() ? std::string("accepted") : chat.status().field();
  };
  EXPECT_EQ(with("}", ""), "notes");
  EXPECT_EQ(with("\"system\":\"s\",", ""), "notes.system");
  EXPECT_EQ(with("\"system\":\"s\"", "\"system\":1"), "notes.system");
  EXPECT_EQ(with("\"turns\"", "\"turn\""), "notes.turns");
  EXPECT_EQ(with("\"message\":\"more\",", ""), "notes.turns[1].message");
  EXPECT_EQ(with("4294967295", "4294967296"), "notes.turns[1].choice");
  EXPECT_EQ(with("\"prompt_shared\":0", "\"prompt_shared\":1"), "notes.turns[0].prompt_shared");
  EXPECT_EQ(with("\"prompt_rest\":", "\"prompt\":"), "notes.turns[0].prompt_rest");
  EXPECT_EQ(with("[5,0,292]", "[5,-1]"), "notes.turns[0].tokens");
  EXPECT_EQ(with("[5,0,292]", "7"), "notes.turns[0].tokens");
  EXPECT_EQ(with("\"tail_bytes\":4", "\"tail_bytes\":10"), "notes.turns[0].tail_bytes");
  EXPECT_EQ(with("\"computed\":12", "\"computed\":1.5"), "notes.turns[0].computed");
  EXPECT_EQ(with("\"tokens_per_s\":71.25", "\"tokens_per_s\":[]"), "notes.turns[0].tokens_per_s");
  EXPECT_EQ(read_chat_notes("[]").status().field(), "notes.system");
  EXPECT_EQ(read_chat_notes("").status().field(), "notes");
}

}  // namespace
}  // namespace chorus::cli
