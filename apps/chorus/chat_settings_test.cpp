#include "chat_settings.h"

#include <gtest/gtest.h>

namespace chorus::cli {
namespace {

TEST(ChatSettings, ValuesAndDefaults) {
  GenerationFields defaults;
  defaults.sampling.temperature = 0.7f;
  defaults.stop = {"END"};
  GenerationFields settings = defaults;
  const auto set = [&](const std::string& name, const std::string& value) {
    const Status status = change_setting(name, value, defaults, settings);
    EXPECT_TRUE(status.ok()) << status.to_string();
  };
  set("temperature", "0");
  set("top_k", "40");
  set("top_p", "0.9");
  set("min_p", "0.05");
  set("max_tokens", "12");
  set("seed", "0");
  set("stop", "two words");
  set("stop_token_ids", "7 8");
  set("logit_bias", "5=-1 7=2");
  set("repetition_penalty", "1.5");
  set("bad_words", "two words");
  set("ignore_eos", "true");
  EXPECT_EQ(settings_text(settings),
            "temperature                0\n"
            "top_k                      40\n"
            "top_p                      0.9\n"
            "min_p                      0.05\n"
            "typical_p                  1\n"
            "presence_penalty           0\n"
            "frequency_penalty          0\n"
            "repetition_penalty         1.5\n"
            "logit_bias                 5=-1 7=2\n"
            "allowed_token_ids          all\n"
            "bad_words                  \"two words\"\n"
            "max_tokens                 12\n"
            "min_tokens                 0\n"
            "seed                       0\n"
            "stop                       \"two words\"\n"
            "stop_token_ids             7 8\n"
            "ignore_eos                 true\n"
            "include_stop_str_in_output false\n"
            "skip_special_tokens        true\n");
  for (const char* name :
       {"temperature", "top_k", "top_p", "min_p", "max_tokens", "seed", "stop", "stop_token_ids",
        "ignore_eos", "logit_bias", "repetition_penalty", "bad_words"})
    set(name, "");
  EXPECT_EQ(settings_text(settings), settings_text(defaults));
  EXPECT_EQ(settings.stop, defaults.stop);
}

TEST(ChatSettings, ABadValueChangesNothing) {
  const GenerationFields defaults;
  GenerationFields settings;
  const std::pair<const char*, const char*> bad[] = {{"temperature", "-1"},
                                                     {"temperature", "hot"},
                                                     {"max_tokens", "0"},
                                                     {"max_tokens", "1.5"},
                                                     {"seed", "-1"},
                                                     {"ignore_eos", "yes"},
                                                     {"top_k", "-2"},
                                                     {"top_k", "some"},
                                                     {"top_p", "0"},
                                                     {"top_p", "1.1"},
                                                     {"min_p", "-0.1"},
                                                     {"colour", "red"},
                                                     {"n", "2"}};
  for (const auto& [name, value] : bad) {
    SCOPED_TRACE(name);
    const Status status = change_setting(name, value, defaults, settings);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_EQ(status.field(), name);
    EXPECT_EQ(settings_text(settings), settings_text(defaults));
  }
  EXPECT_NE(change_setting("temprature", "1", defaults, settings).message().find("temperature"),
            std::string::npos);
}

}  // namespace
}  // namespace chorus::cli
