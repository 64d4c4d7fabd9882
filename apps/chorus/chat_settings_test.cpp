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
  set("stop_token_ids", "7");
  set("ignore_eos", "true");
  EXPECT_EQ(settings_text(settings),
            "temperature    0\ntop_k          40\ntop_p          0.9\nmin_p          0.05\n"
            "max_tokens     12\nseed           0\nstop           \"two words\"\n"
            "stop_token_ids 7\nignore_eos     true\n");
  for (const char* name : {"temperature", "top_k", "top_p", "min_p", "max_tokens", "seed", "stop",
                           "stop_token_ids", "ignore_eos"})
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
