// A thread that may not be had.
#pragma once

#include <functional>
#include <memory>
#include <pthread.h>

#include "base/result.h"

namespace chorus {

// Thread: of its owner.
class Thread {
 public:
  // Runs `body` on a new thread. kResourceExhausted (field threads) when the system gives none.
  static Result<std::unique_ptr<Thread>> start(std::function<void()> body);
  ~Thread();  // waits until `body` has returned
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

 private:
  explicit Thread(std::function<void()> body) : body_(std::move(body)) {}

  std::function<void()> body_;
  pthread_t id_{};
  bool is_started_ = false;
};

}  // namespace chorus
