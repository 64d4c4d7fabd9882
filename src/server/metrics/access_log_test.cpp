#include "server/metrics/access_log.h"

#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

#include "json/value.h"

namespace chorus::metrics {
namespace {

http::AccessRecord record_of(int number) {
  return {.id = "id-" + std::to_string(number),
          .peer = "127.0.0.1:1",
          .method = "POST",
          .path = "/v1/x",
          .status = 200,
          .time_us = 1'790'000'000'123'456,
          .duration_us = 1500,
          .request_bytes = 10,
          .sent_bytes = 20,
          .fields = {{"prompt_tokens", int64_t{7}}, {"key", "alice"}}};
}

std::string temporary_path(const std::string& name) {
  return (std::filesystem::temp_directory_path() / (name + std::to_string(getpid()))).string();
}

std::vector<json::Value> read_lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<json::Value> values;
  for (std::string line; std::getline(file, line);) {
    auto value = json::parse(line, "line");
    EXPECT_TRUE(value.ok()) << line;
    if (value.ok()) values.push_back(std::move(value).value());
  }
  return values;
}

TEST(AccessLog, ALineSaysWhatHappened) {
  EXPECT_EQ(access_line(record_of(1)),
            R"({"time":"2026-09-21T14:13:20.123Z","request_id":"id-1","peer":"127.0.0.1:1",)"
            R"("method":"POST","path":"/v1/x","status":200,"ms":1.5,"request_bytes":10,"bytes":20,)"
            R"("prompt_tokens":7,"key":"alice"})");
  http::AccessRecord odd = record_of(2);
  odd.client_left = true;
  odd.path = "/\"\n\xff";
  const std::string line = access_line(odd);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto value = json::parse(line, "line");
  ASSERT_TRUE(value.ok());
  EXPECT_TRUE(value->find("client_left")->as_bool());
}

TEST(AccessLog, LinesOfManyThreadsAreWhole) {
  const std::string path = temporary_path("chorus_access_");
  {
    auto log = AccessLog::open(path);
    ASSERT_TRUE(log.ok());
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < 500; ++i) (*log)->add(record_of(1000 * t + i));
      });
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(read_lines(path).size(), 2000u);
  {
    auto again = AccessLog::open(path);
    ASSERT_TRUE(again.ok());
    (*again)->add(record_of(9));
  }
  EXPECT_EQ(read_lines(path).size(), 2001u) << "appended";
  std::filesystem::remove(path);
  EXPECT_EQ(AccessLog::open("/nowhere/at/all").status().field(), "access_log");
}

// A pipe that nobody reads for a while keeps nobody who logs; what was dropped is said.
TEST(AccessLog, ASlowReaderDoesNotKeepAnybody) {
  const std::string path = temporary_path("chorus_access_pipe_");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const int reader = open(path.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  constexpr int kLines = 30'000;
  auto log = AccessLog::open(path);
  ASSERT_TRUE(log.ok());
  for (int i = 0; i < kLines; ++i) (*log)->add(record_of(i));  // returns although nobody reads
  std::string text;
  std::thread end([&] { *log = nullptr; });
  fcntl(reader, F_SETFL, 0);
  char bytes[4096];
  for (ssize_t count = 0; (count = read(reader, bytes, sizeof bytes)) > 0;)
    text.append(bytes, static_cast<size_t>(count));
  end.join();
  close(reader);
  std::filesystem::remove(path);
  std::istringstream lines(text);
  int64_t num_lines = 0;
  int64_t num_dropped = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto value = json::parse(line, "line");
    ASSERT_TRUE(value.ok()) << line;
    if (const json::Value* dropped = value->find("dropped_lines"))
      num_dropped += dropped->to_integer("dropped_lines", 1, kLines).value();
    else
      ++num_lines;
  }
  EXPECT_EQ(num_lines + num_dropped, kLines);
  EXPECT_GT(num_dropped, 0);
}

}  // namespace
}  // namespace chorus::metrics
