#include "line_reader.h"

#include <clocale>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <histedit.h>
#include <iostream>
#include <termios.h>
#include <unistd.h>

namespace chorus::cli {

// libedit, set up so that Ctrl-C is a key while a line is edited: a signal would reach the thread
// that waits for it, and not the one that reads.
struct LineReader::Editor {
  Editor();
  ~Editor();
  Editor(const Editor&) = delete;
  Editor& operator=(const Editor&) = delete;

  static Editor* of(EditLine* line);
  static char* show_prompt(EditLine* line);
  static unsigned char cancel(EditLine* line, int key);

  EditLine* line = nullptr;
  History* history = nullptr;
  std::string prompt;
  bool is_cancelled = false;
  termios saved = {};
};

LineReader::Editor* LineReader::Editor::of(EditLine* line) {
  void* data = nullptr;
  el_get(line, EL_CLIENTDATA, &data);
  return static_cast<Editor*>(data);
}

char* LineReader::Editor::show_prompt(EditLine* line) { return of(line)->prompt.data(); }

unsigned char LineReader::Editor::cancel(EditLine* line, int) {
  of(line)->is_cancelled = true;
  return CC_EOF;
}

LineReader::Editor::Editor() {
  // Characters of more than one byte are edited as one. Numbers keep their form.
  if (std::setlocale(LC_CTYPE, "") == nullptr ||
      std::strcmp(setlocale(LC_CTYPE, nullptr), "C") == 0) {
    std::setlocale(LC_CTYPE, "C.UTF-8");
  }
  tcgetattr(STDIN_FILENO, &saved);
  line = el_init("chorus", stdin, stdout, stderr);
  history = history_init();
  HistEvent event;
  ::history(history, &event, H_SETSIZE, 1000);
  ::history(history, &event, H_SETUNIQUE, 1);
  el_set(line, EL_CLIENTDATA, this);
  el_set(line, EL_PROMPT, &show_prompt);
  el_set(line, EL_EDITOR, "emacs");
  el_set(line, EL_SIGNAL, 0);
  el_set(line, EL_HIST, &::history, history);
  // The narrow form leaks copies of both texts.
  el_wset(line, EL_ADDFN, L"chorus-cancel", L"drop the line", &cancel);
  el_set(line, EL_BIND, "^C", "chorus-cancel", nullptr);
  el_set(line, EL_SETTY, "-d", "-isig", nullptr);
}

LineReader::Editor::~Editor() {
  el_end(line);
  history_end(history);
}

LineReader::LineReader(bool interactive)
    : editor_(interactive ? std::make_unique<Editor>() : nullptr) {}

LineReader::~LineReader() = default;

LineReader::Kind LineReader::read(const std::string& prompt, std::string& line) {
  if (editor_ == nullptr) {
    if (!std::getline(std::cin, line)) return Kind::kEnd;
    if (line.ends_with('\r')) line.pop_back();
    return Kind::kLine;
  }
  editor_->prompt = prompt;
  editor_->is_cancelled = false;
  el_resize(editor_->line);
  int count = 0;
  const char* text = el_gets(editor_->line, &count);
  if (editor_->is_cancelled || text == nullptr || count <= 0) {
    std::fputs(editor_->is_cancelled ? "^C\n" : "\n", stdout);
    std::fflush(stdout);
    return editor_->is_cancelled ? Kind::kCancelled : Kind::kEnd;
  }
  line.assign(text, static_cast<size_t>(count));
  while (line.ends_with('\n') || line.ends_with('\r')) line.pop_back();
  if (line.find_first_not_of(" \t") != std::string::npos) {
    HistEvent event;
    ::history(editor_->history, &event, H_ENTER, line.c_str());
  }
  return Kind::kLine;
}

void LineReader::restore_terminal() const {
  if (editor_ != nullptr) tcsetattr(STDIN_FILENO, TCSANOW, &editor_->saved);
}

}  // namespace chorus::cli
