// Temporary folders of a test's files.
#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <span>
#include <string>
#include <string_view>
#include <unistd.h>

namespace chorus {

// A new folder that is removed with this object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = testing::TempDir() + "chorus_folder_XXXXXX";
    path_ = ::mkdtemp(pattern.data()) == nullptr ? std::string() : pattern;
    EXPECT_FALSE(path_.empty());
  }
  ~TemporaryFolder() {
    if (!path_.empty()) std::filesystem::remove_all(path_);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string path_of(const std::string& name) const { return path_ + "/" + name; }

  void write(const std::string& name, std::string_view text) const {
    std::ofstream(path_of(name), std::ios::binary) << text;
  }
  void write(const std::string& name, std::span<const std::byte> bytes) const {
    write(name, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  void remove(const std::string& name) const { std::filesystem::remove(path_of(name)); }

 private:
  std::string path_;
};

}  // namespace chorus
