// Templates that mean harm end as error values within a bounded time.
#include <ctime>
#include <gtest/gtest.h>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template.h"

namespace chorus::text {
namespace {

// How long a rendering takes is up to what else the machine does: where it is not time that is
// limited, that limit is out of reach.
constexpr ChatTemplateLimits kAnHour = {.time_ms = 3'600'000};

struct Malicious {
  const char* name;
  std::string source;
  Code code;
  const char* message;  // of the limit that ends it
};

std::string repeat(std::string_view text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

std::vector<Malicious> malicious_templates() {
  const std::string forever = "{% for a in range(100000) %}{% for b in range(100000) %}";
  const std::string nest =
      "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor "
      "%}";
  const std::string grow =
      "{% set ns = namespace(x='0123456789') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}"
      "{% endfor %}{{ ns.x | length }}";
  const std::string cycle =
      "{% set a = namespace() %}{% set a.x = [a] %}{% set b = namespace() %}{% set b.x = [b] %}";
  return {
      {"cycle, compared", cycle + "{{ a == b }}", Code::kResourceExhausted, "memory"},
      {"cycle, sorted", cycle + "{{ [a, b] | sort | length }}", Code::kResourceExhausted, "memory"},
      {"cycle, as a key", cycle + "{{ {a: 1} }}", Code::kResourceExhausted, "memory"},
      {"cycle, concatenated", cycle + "{{ (a ~ '') | length }}", Code::kResourceExhausted,
       "memory"},
      {"loop without end", forever + "{% endfor %}{% endfor %}", Code::kResourceExhausted, "steps"},
      {"endless output", forever + "xxxxxxxxxxxxxxxx{% endfor %}{% endfor %}",
       Code::kResourceExhausted, "steps"},
      {"long output", "{% for a in range(60000) %}" + repeat("x", 1000) + "{% endfor %}",
       Code::kResourceExhausted, "text is too long"},
      {"recursion", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", Code::kInvalidArgument,
       "recursion limit"},
      {"two macros",
       "{% macro a(f) %}{{ f(a) }}{% endmacro %}{% macro b(f) %}{{ f(b) }}{% endmacro %}"
       "{{ a(b) }}",
       Code::kInvalidArgument, "recursion limit"},
      {"recursive loop", "{% for x in [[1]] recursive %}{{ loop([x]) }}{% endfor %}",
       Code::kInvalidArgument, "recursion limit"},
      {"range too long", "{{ range(10000000000) | list | length }}", Code::kInvalidArgument,
       "too many elements"},
      {"ten million numbers",
       "{% for i in range(100) %}{% set _ = range(100000) | list %}{% endfor %}"
       "{{ (range(100000) | list * 100) | list | length }}",
       Code::kResourceExhausted, "memory"},
      {"repeated text", "{{ ('x' * 1000000000) | length }}", Code::kInvalidArgument, "too large"},
      {"growing text", grow, Code::kResourceExhausted, "memory"},
      {"growing list",
       "{% set ns = namespace(x=['0123456789']) %}{% for i in range(60) %}"
       "{% set ns.x = (ns.x + ns.x) | list %}{% endfor %}",
       Code::kResourceExhausted, "memory"},
      {"wide indent", "{{ [[[]]] | tojson(indent=1000000000) }}", Code::kInvalidArgument,
       "bad indent"},
      {"nested value, written as JSON", nest + "{{ ns.x | tojson }}", Code::kResourceExhausted,
       "steps"},
      {"nested value, printed", nest + "{{ ns.x }}", Code::kResourceExhausted, "steps"},
      {"nested value, concatenated", nest + "{{ (ns.x ~ '') | length }}", Code::kResourceExhausted,
       "steps"},
      {"nested value, compared", nest + "{{ ns.x == ns.x }}", Code::kResourceExhausted, "steps"},
  };
}

// Processor time of this process, in seconds.
double processor_time() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Renders no messages, twice: what was refused stays so, and at once where it had to be stopped.
void expect_refused(const std::string& source, const ChatTemplateLimits& limits, Code code,
                    std::string_view message) {
  const auto created = ChatTemplate::create(source, limits);
  ASSERT_TRUE(created.ok()) << created.status().to_string();
  const double start = processor_time();
  const auto rendered = (*created)->render_json("[]");
  EXPECT_LT(processor_time() - start, 20.0);
  ASSERT_FALSE(rendered.ok()) << rendered.value().substr(0, 100);
  EXPECT_EQ(rendered.status().code(), code) << rendered.status().to_string();
  EXPECT_NE(rendered.status().message().find(message), std::string::npos)
      << rendered.status().to_string();
  EXPECT_FALSE((*created)->render_json("[]").ok());
}

TEST(ChatTemplateLimits, MaliciousTemplatesEndAsErrors) {
  for (const Malicious& malicious : malicious_templates()) {
    SCOPED_TRACE(malicious.name);
    expect_refused(malicious.source, kAnHour, malicious.code, malicious.message);
  }
}

// More than an hour of work in few steps.
const std::string kSlowFilters =
    "{% set s = 'ab' * 4000000 %}{% for i in range(100000) %}"
    "{% set t = s | replace('a', 'c') | upper %}{% endfor %}";

TEST(ChatTemplateLimits, TimeEndsWhatTakesFewSteps) {
  expect_refused(kSlowFilters, {}, Code::kResourceExhausted, "longer than 5 s");
  expect_refused(kSlowFilters, {.time_ms = 1500}, Code::kResourceExhausted, "longer than 1.5 s");
}

TEST(ChatTemplateLimits, EachIsAsItWasSet) {
  const auto expect = [](const std::string& source, ChatTemplateLimits limits, Code code,
                         const char* message) {
    SCOPED_TRACE(message);
    limits.time_ms = kAnHour.time_ms;
    const auto usual = ChatTemplate::create(source, kAnHour);
    ASSERT_TRUE(usual.ok() && (*usual)->render_json("[]").ok());
    expect_refused(source, limits, code, message);
  };
  const std::string text = "{% for i in range(1000) %}0123456789{% endfor %}";
  expect(text, {.steps = 1000}, Code::kResourceExhausted, "too many steps");
  expect(text, {.max_steps = 1000}, Code::kResourceExhausted, "too many steps");
  expect(text, {.output_bytes = 9999, .output_bytes_per_byte = 0}, Code::kResourceExhausted,
         "text is too long");
  expect("{% set n = 8000000 %}{{ ('x' * n) | length }}", {.live_bytes = 4'000'000},
         Code::kResourceExhausted, "too much memory");
  expect("{% macro m(n) %}{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(4) }}",
         {.recursion = 20}, Code::kInvalidArgument, "recursion");
  EXPECT_TRUE(ChatTemplate::create("0123456789", {.source_bytes = 10}).ok());
  EXPECT_TRUE(ChatTemplate::create("{{ [1, 2] }}{% if x %}{% endif %}", {.tag_tokens = 6}).ok());
  const auto tag = ChatTemplate::create("a\n{{ [1, 2, 3] }}", {.tag_tokens = 6});
  EXPECT_EQ(tag.status().code(), Code::kDataLoss);
  EXPECT_NE(tag.status().message().find("at most 6 tokens in one tag, found more in line 2"),
            std::string::npos)
      << tag.status().to_string();
  const auto longer = ChatTemplate::create("0123456789x", {.source_bytes = 10});
  EXPECT_EQ(longer.status().to_string(),
            data_loss("chat_template", "longer than 10 bytes").to_string());
}

// What grows with the input.
TEST(ChatTemplateLimits, GrowWithTheMessages) {
  const auto created = ChatTemplate::create(
      "{% for m in messages %}{{ m.content }}{% endfor %}",
      {.steps = 10, .steps_per_byte = 4, .output_bytes = 0, .output_bytes_per_byte = 1});
  ASSERT_TRUE(created.ok());
  EXPECT_TRUE((*created)->render(std::vector<ChatMessage>(500, {"user", "hello"})).ok());
}

TEST(ChatTemplateLimits, SourcesWithDeepNestingAreRefused) {
  const std::string deep_list = "{{ " + repeat("[", 4000) + repeat("]", 4000) + " }}";
  const std::string deep_if = repeat("{% if x %}", 50'000) + repeat("{% endif %}", 50'000);
  for (const std::string& source : {deep_list, deep_if}) {
    const auto created = ChatTemplate::create(source, kAnHour);
    EXPECT_EQ(created.status().code(), Code::kDataLoss) << source.substr(0, 20);
    EXPECT_EQ(created.status().field(), "chat_template") << created.status().to_string();
    EXPECT_NE(created.status().message().find("recursion"), std::string::npos);
  }
  const std::string longer_list = "{{ " + repeat("[", 100'000) + repeat("]", 100'000) + " }}";
  const std::string deep_unary = "{{ " + repeat("not ", 200'000) + "x }}";
  for (const std::string& source : {longer_list, deep_unary}) {
    const auto created = ChatTemplate::create(source, kAnHour);
    EXPECT_EQ(created.status().code(), Code::kDataLoss) << source.substr(0, 20);
    EXPECT_EQ(created.status().field(), "chat_template") << created.status().to_string();
  }
}

// What is read without recursion nests as deep as it is long, and all work on it is recursive.
TEST(ChatTemplateLimits, LongExpressionsAreRefusedBeforeTheyAreTooDeep) {
  struct Shape {
    const char* begin;
    const char* repeated;
    int num_tokens;  // of what is repeated
  };
  const Shape shapes[] = {
      {"{{ x", "+x", 2},
      {"{{ 1", "+1", 2},
      {"{{ x", "~x", 2},
      {"{{ x", "**x", 2},
      {"{{ x", "<x", 2},
      {"{{ x", " or x", 2},
      {"{{ x", ".a", 2},
      {"{{ x", "[0]", 3},
      {"{{ x", "()", 2},
      {"{{ x", "|e", 2},
      {"{{ x", "|e()", 4},
      {"{{ x", " is x", 2},
      {"{{ x if x", " else x if x", 4},
      {"{% set y = x", "+x", 2},
      {"{{ x or ", "-", 1},
      {"{{ x or ", "not ", 1},
  };
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(shape.repeated);
    const std::string begin = shape.begin;
    const bool is_prefix = begin.ends_with("or ");
    const std::string end = is_prefix ? "x }}" : begin.starts_with("{%") ? " %}" : " }}";
    const int64_t most = ChatTemplateLimits{}.source_bytes - 40;
    const std::string repeated = shape.repeated;
    const auto count = static_cast<int>(most / std::ssize(repeated));
    const double start = processor_time();
    const auto refused = ChatTemplate::create(begin + repeat(repeated, count) + end, kAnHour);
    EXPECT_LT(processor_time() - start, 20.0);
    EXPECT_EQ(refused.status().code(), Code::kDataLoss) << refused.status().to_string();
    EXPECT_NE(refused.status().message().find("at most 10000 tokens"), std::string::npos)
        << refused.status().to_string();
    // The deepest that is not is worked on, whatever comes of it.
    const std::string deep = begin + repeat(repeated, 9980 / shape.num_tokens) + end;
    const auto created = ChatTemplate::create(deep, kAnHour);
    ASSERT_TRUE(created.ok()) << created.status().to_string();
    (void)(*created)->render_json("[]", {.variables_json = R"({"x": 1})"});
  }
}

TEST(ChatTemplateLimits, LongChatsAreRendered) {
  const auto created = ChatTemplate::create(
      "{% for message in messages %}{% if message.role == 'user' %}U:{% else %}A:{% endif %}"
      "{{ message.content | trim }}\n{% endfor %}",
      kAnHour);
  ASSERT_TRUE(created.ok());
  std::vector<ChatMessage> messages(5000, {"user", "hello there"});
  const auto rendered = (*created)->render(messages);
  ASSERT_TRUE(rendered.ok()) << rendered.status().to_string();
  EXPECT_EQ(rendered->size(), 5000u * 14);
  const std::vector<ChatMessage> big = {{"user", std::string(20'000'000, 'x')}};
  const auto long_message = (*created)->render(big);
  ASSERT_TRUE(long_message.ok()) << long_message.status().to_string();
}

}  // namespace
}  // namespace chorus::text
