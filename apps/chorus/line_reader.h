// Where a chat's lines come from: a terminal, with editing and history, or anything else.
#pragma once

#include <memory>
#include <string>

namespace chorus::cli {

// Thread: main.
class LineReader {
 public:
  enum class Kind : uint8_t {
    kLine,
    kCancelled,  // Ctrl-C: the line was dropped
    kEnd,        // the end of the input, or Ctrl-D on an empty line
  };

  // With editing when `interactive`: standard input and output are a terminal then.
  explicit LineReader(bool interactive);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  // The next line without its end. The prompt is shown on a terminal only.
  Kind read(const std::string& prompt, std::string& line);

  // Puts the terminal back as it was; for a process that ends in the middle of read(). Thread: any.
  void restore_terminal() const;

 private:
  struct Editor;
  std::unique_ptr<Editor> editor_;  // null: not interactive
};

}  // namespace chorus::cli
