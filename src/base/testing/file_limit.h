// Files that do not grow, as on a full disk.
#pragma once

#include <csignal>
#include <sys/resource.h>

#include "base/check.h"

namespace chorus::testing {

// While it lives, no file of this process grows beyond `size` bytes: writing more fails. One at a
// time; whoever's output goes to a file says nothing meanwhile.
class FileLimit {
 public:
  explicit FileLimit(rlim_t size) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    CHORUS_CHECK(::getrlimit(RLIMIT_FSIZE, &before_) == 0);
    const rlimit limit = {.rlim_cur = size, .rlim_max = before_.rlim_max};
    CHORUS_CHECK(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~FileLimit() {
    CHORUS_CHECK(::setrlimit(RLIMIT_FSIZE, &before_) == 0);
    std::signal(SIGXFSZ, handler_);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  void (*const handler_)(int);
  rlimit before_ = {};
};

}  // namespace chorus::testing
