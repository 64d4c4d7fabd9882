#include "base/memory_map.h"

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <thread>
#include <vector>

#include "base/testing/file_limit.h"

namespace chorus {
namespace {

std::string temporary_path(const char* name) { return ::testing::TempDir() + name; }

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(MemoryMap, ShowsTheBytesOfAFile) {
  const std::string path = temporary_path("chorus_map_bytes");
  std::ofstream(path) << "hello";
  auto map = MemoryMap::open(path);
  ASSERT_TRUE(map.ok()) << map.status().to_string();
  ASSERT_EQ(map->bytes().size(), 5u);
  EXPECT_EQ(std::memcmp(map->bytes().data(), "hello", 5), 0);
  const MemoryMap moved = std::move(map).value();
  EXPECT_EQ(moved.bytes().size(), 5u);
}

TEST(MemoryMap, EmptyFileIsEmpty) {
  const std::string path = temporary_path("chorus_map_empty");
  std::ofstream(path).flush();
  const auto map = MemoryMap::open(path);
  ASSERT_TRUE(map.ok());
  EXPECT_TRUE(map->bytes().empty());
}

TEST(MemoryMap, NamesTheFileItCannotOpen) {
  const auto missing = MemoryMap::open(temporary_path("chorus_no_such_file"));
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), Code::kNotFound);
  EXPECT_NE(missing.status().field().find("chorus_no_such_file"), std::string::npos);
  const auto folder = MemoryMap::open(::testing::TempDir());
  ASSERT_FALSE(folder.ok());
  EXPECT_EQ(folder.status().code(), Code::kInvalidArgument);
}

TEST(MemoryMap, DoesNotWaitForTheWriterOfANamedPipe) {
  const std::string path = temporary_path("chorus_map_pipe");
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const auto pipe = MemoryMap::open(path);
  ASSERT_FALSE(pipe.ok());
  EXPECT_EQ(pipe.status().code(), Code::kInvalidArgument);
  std::filesystem::remove(path);
}

TEST(WriteFileAtomically, WritesAllPartsAndLeavesNothingBeside) {
  const std::string folder = temporary_path("chorus_write_dir");
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  const std::string path = folder + "/out";
  std::ofstream(path) << "old";
  const std::string a = "abc", b = "de";
  const std::vector<std::span<const std::byte>> parts = {as_bytes(a), as_bytes(b)};
  ASSERT_TRUE(write_file_atomically(path, parts).ok());
  EXPECT_EQ(read_text_file(path, 100).value(), "abcde");
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files += entry.exists();
  EXPECT_EQ(files, 1);
}

TEST(WriteFileAtomically, FailureLeavesTheTarget) {
  const std::string a = "abc";
  const std::vector<std::span<const std::byte>> parts = {as_bytes(a)};
  const std::string target = temporary_path("chorus_write_target_folder");
  std::filesystem::create_directories(target + "/inside");
  EXPECT_FALSE(write_file_atomically(target, parts).ok());
  EXPECT_TRUE(std::filesystem::exists(target + "/inside"));
  EXPECT_EQ(write_file_atomically("/dev/null", parts).code(), Code::kInvalidArgument);
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_EQ(write_file_atomically(temporary_path("chorus_no_folder/x"), parts).code(),
            Code::kNotFound);
}

TEST(WriteFileAtomically, ManyToOnePathLeaveOneWholeFile) {
  const std::string folder = temporary_path("chorus_write_together");
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  const std::string path = folder + "/out";
  std::atomic<int> num_failed = 0;
  std::vector<std::thread> writers;
  for (int i = 0; i < 4; ++i) {
    writers.emplace_back([&, i] {
      const std::string text(size_t{300'000} + static_cast<size_t>(i), static_cast<char>('a' + i));
      const std::vector<std::span<const std::byte>> parts = {as_bytes(text)};
      for (int round = 0; round < 20; ++round) {
        if (!write_file_atomically(path, parts).ok()) ++num_failed;
        const auto found = read_text_file(path, 1 << 20);
        if (!found.ok() || found->find_first_not_of(found->front()) != std::string::npos ||
            found->size() != size_t{300'000} + static_cast<size_t>(found->front() - 'a'))
          ++num_failed;
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(num_failed, 0);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files += entry.exists();
  EXPECT_EQ(files, 1);
}

TEST(WriteFileAtomically, FollowsLinks) {
  const std::string folder = temporary_path("chorus_write_links");
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder + "/inside");
  const std::string path = folder + "/link";
  std::filesystem::create_symlink("inside/second", path);
  std::filesystem::create_symlink("file", folder + "/inside/second");
  const std::string a = "abc";
  const std::vector<std::span<const std::byte>> parts = {as_bytes(a)};
  for (int i = 0; i < 2; ++i) {  // a new file, and an old one
    ASSERT_TRUE(write_file_atomically(path, parts).ok());
    EXPECT_TRUE(std::filesystem::is_symlink(path));
    EXPECT_TRUE(std::filesystem::is_symlink(folder + "/inside/second"));
    EXPECT_EQ(read_text_file(folder + "/inside/file", 100).value(), "abc");
  }
  std::filesystem::create_symlink("circle", folder + "/circle");
  EXPECT_EQ(write_file_atomically(folder + "/circle", parts).code(), Code::kInvalidArgument);
}

TEST(WriteFileAtomically, CanBeAskedForBefore) {
  const std::string folder = temporary_path("chorus_write_before");
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  EXPECT_TRUE(check_writable(folder + "/out").ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  EXPECT_EQ(check_writable(folder).code(), Code::kInvalidArgument);
  EXPECT_EQ(check_writable(folder + "/none/out").code(), Code::kNotFound);
  EXPECT_EQ(check_writable("").field(), "path");
  EXPECT_EQ(check_writable("/dev/null").code(), Code::kInvalidArgument);
}

TEST(WriteFileAtomically, StoppedItLeavesTheTargetAndNothingBeside) {
  const std::string folder = temporary_path("chorus_write_stopped");
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  const std::string path = folder + "/out";
  std::ofstream(path) << "old";
  const std::string big(size_t{9} << 20, 'x');
  const std::vector<std::span<const std::byte>> parts = {as_bytes(big)};
  const auto num_files = [&] {
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) files += entry.exists();
    return files;
  };
  // Asked before each of three pieces, and before the file takes its name.
  for (int last = 1; last <= 4; ++last) {
    int asked = 0;
    const Status status = write_file_atomically(path, parts, [&] {
      EXPECT_EQ(num_files(), 2);
      return ++asked == last;
    });
    EXPECT_EQ(status.code(), Code::kCancelled);
    EXPECT_EQ(asked, last);
    EXPECT_EQ(num_files(), 1);
    EXPECT_EQ(read_text_file(path, 100).value(), "old");
  }
  int asked = 0;
  EXPECT_TRUE(write_file_atomically(path, parts, [&] { return ++asked > 4; }).ok());
  EXPECT_EQ(std::filesystem::file_size(path), big.size());
}

TEST(WriteFileAtomically, WithoutRoomItSaysSoAndLeavesTheTarget) {
  const std::string folder = temporary_path("chorus_write_full");
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  const std::string path = folder + "/out";
  std::ofstream(path) << "old";
  const std::string big(5000, 'x');
  const std::vector<std::span<const std::byte>> parts = {as_bytes(big)};
  Status status;
  {
    const testing::FileLimit limit(4096);
    status = write_file_atomically(path, parts);
  }
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_EQ(status.field(), path);
  EXPECT_EQ(read_text_file(path, 100).value(), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
}

TEST(ReadTextFile, RefusesMoreThanTheLimit) {
  const std::string path = temporary_path("chorus_text");
  std::ofstream(path) << "12345";
  EXPECT_EQ(read_text_file(path, 5).value(), "12345");
  EXPECT_EQ(read_text_file(path, 4).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace chorus
