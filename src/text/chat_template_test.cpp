#include "text/chat_template.h"

#include <gtest/gtest.h>
#include <vector>

namespace chorus::text {
namespace {

// What the template prints for these messages, or its error.
std::string print(std::string_view source, std::string_view messages = "[]",
                  const RenderOptions& options = {}) {
  const auto created = ChatTemplate::create(source);
  if (!created.ok()) return created.status().to_string();
  const auto rendered = (*created)->render_json(messages, options);
  return rendered.ok() ? *rendered : rendered.status().to_string();
}

constexpr std::string_view kChatMl =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe brief<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

TEST(ChatTemplate, RendersChatMl) {
  const auto created = ChatTemplate::create(kChatMl);
  ASSERT_TRUE(created.ok()) << created.status().to_string();
  const std::vector<ChatMessage> messages = {{"user", "a \"b\"\\\n\x01 \xc3\xa9"}};
  EXPECT_EQ(*(*created)->render(messages),
            "<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\n"
            "a \"b\"\\\n\x01 \xc3\xa9<|im_end|>\n<|im_start|>assistant\n");
  const std::vector<ChatMessage> with_system = {{"system", "S"}, {"user", "U"}};
  EXPECT_EQ(*(*created)->render(with_system, {.add_generation_prompt = false}),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n");
}

TEST(ChatTemplate, TrimsBlocksLikeHuggingFace) {
  EXPECT_EQ(print("  {% if true %}\n  a\n  {% endif %}\nb"), "  a\nb");
}

TEST(ChatTemplate, MarksOfWhatAnAssistantSaidPrintNothing) {
  EXPECT_EQ(print("a {% generation %}b{% endgeneration %} c"), "a b c");
  EXPECT_EQ(print("a\n  {%- generation -%}  b\n {%-endgeneration -%}\n c"), "abc");
  EXPECT_EQ(print("  {% generation %}\n  a\n  {% endgeneration %}\nb"), "  a\nb");
  EXPECT_NE(print("{% generation %}a").find("chat_template"), std::string::npos);
  EXPECT_EQ(print("{{ '{% x' }}{{ 'generation' }} %} {% if true %}{{ '%}' }}{% endif %}{"),
            "{% xgeneration %} %}{");
}

TEST(ChatTemplate, OffersVariablesAndTokens) {
  EXPECT_EQ(
      print("{{ bos_token }}{{ x.y[1] }}{{ eos_token }}{{ missing }}", "[]",
            {.bos_token = "<s>", .eos_token = "</s>", .variables_json = R"({"x":{"y":[1,2]}})"}),
      "<s>2</s>");
}

TEST(ChatTemplate, OffersWhatHuggingFacePassesByItself) {
  const char* source =
      "{{ tools is none }} {{ tools is defined }} {{ documents is none }} {{ unk_token }} "
      "{{ pad_token is defined }}";
  const auto chat_template = ChatTemplate::create(source);
  ASSERT_TRUE(chat_template.ok()) << chat_template.status().to_string();
  EXPECT_EQ(*(*chat_template)->render({}, {.unk_token = "<unk>"}), "True True True <unk> False");
  EXPECT_EQ(
      *(*chat_template)->render({}, {.pad_token = "<pad>", .variables_json = R"({"tools": [1]})"}),
      "False True True  True");
}

TEST(ChatTemplate, HasLoopControlsNamespacesAndMacros) {
  EXPECT_EQ(
      print("{% set ns = namespace(n=0) %}{% for i in range(9) %}{% if i == 2 %}{% continue %}"
            "{% endif %}{% if i == 5 %}{% break %}{% endif %}{% set ns.n = ns.n + i %}{% endfor %}"
            "{{ ns.n }}{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m(1) }}"),
      "8[1]");
}

TEST(ChatTemplate, HasPythonMethods) {
  EXPECT_EQ(print("{{ ' a,b '.strip().split(',') | join('-') }} {{ 'x'.upper() }} "
                  "{{ 'abc'.startswith('ab') }} {% for k, v in {'p': 1}.items() %}{{ k }}{{ v }}"
                  "{% endfor %} {{ {'p': 1}.get('q', 7) }} {{ 'a' in 'cab' }} {{ 'hello'[1:-1] }}"),
            "a-b X True p1 7 True ell");
}

TEST(ChatTemplate, PrintsValuesLikePython) {
  EXPECT_EQ(
      print("{{ none }} {{ true }} {{ [1, 'a', 1.0, none, \"it's\"] }} {{ {'k': 'v'} }} {{ 0.1 }} "
            "{{ 1e-7 }} {{ 1e16 }}"),
      "None True [1, 'a', 1.0, None, \"it's\"] {'k': 'v'} 0.1 1e-07 1e+16");
}

TEST(ChatTemplate, WritesJsonLikePython) {
  const RenderOptions options{.variables_json = R"({"x":{"b":[1,2.0,null,true],"a":"é<'\"\n"}})"};
  EXPECT_EQ(print("{{ x | tojson }}", "[]", options),
            "{\"b\": [1, 2.0, null, true], \"a\": \"é<'\\\"\\n\"}");
  EXPECT_EQ(
      print("{{ x | tojson(indent=2) }}", "[]", options),
      "{\n  \"b\": [\n    1,\n    2.0,\n    null,\n    true\n  ],\n  \"a\": \"é<'\\\"\\n\"\n}");
  EXPECT_EQ(print("{{ x | tojson(ensure_ascii=true, sort_keys=true, separators=(',', ':')) }}",
                  "[]", options),
            "{\"a\":\"\\u00e9<'\\\"\\n\",\"b\":[1,2.0,null,true]}");
  EXPECT_EQ(print("{{ [] | tojson(indent=2) }}{{ {} | tojson }}"), "[]{}");
}

TEST(ChatTemplate, PrintsTheTimeItIsGiven) {
  // Noon, so that no time zone below 12 hours moves the date.
  EXPECT_EQ(print("{{ strftime_now('%d %b %Y') }}", "[]", {.now = 1722513600}), "01 Aug 2024");
}

TEST(ChatTemplate, PassesItsOwnRefusalOn) {
  const auto created =
      ChatTemplate::create("{{ raise_exception('roles must alternate: ' ~ messages[0].role) }}");
  ASSERT_TRUE(created.ok());
  const std::vector<ChatMessage> messages = {{"tool", ""}};
  EXPECT_EQ((*created)->render(messages).status(),
            invalid_argument("messages", "roles must alternate: tool"));
}

TEST(ChatTemplate, NamesWhatIsWrong) {
  const auto syntax = ChatTemplate::create("a\n{% if %}");
  EXPECT_EQ(syntax.status().code(), Code::kDataLoss);
  EXPECT_EQ(syntax.status().field(), "chat_template");
  EXPECT_NE(syntax.status().message().find(":2"), std::string::npos) << syntax.status().message();
  EXPECT_EQ(ChatTemplate::create("\xff").status().code(), Code::kDataLoss);

  const auto created = ChatTemplate::create("{{ messages[0].content.nothing.more }}");
  ASSERT_TRUE(created.ok());
  const std::vector<ChatMessage> messages = {{"user", "x"}};
  EXPECT_EQ((*created)->render(messages).status().field(), "chat_template");
  EXPECT_EQ((*created)->render_json("{").status().field(), "messages");
  EXPECT_EQ((*created)->render_json("{}").status().field(), "messages");
  EXPECT_EQ((*created)->render_json("[]", {.variables_json = "[]"}).status().field(), "variables");
  const std::vector<ChatMessage> bad_bytes = {{"user", "x"}, {"user", "\xff"}};
  EXPECT_EQ((*created)->render(bad_bytes).status().field(), "messages[1]");
}

}  // namespace
}  // namespace chorus::text
