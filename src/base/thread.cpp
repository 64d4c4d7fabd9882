#include "base/thread.h"

#include <cstring>
#include <string>
#include <utility>

namespace chorus {

Result<std::unique_ptr<Thread>> Thread::start(std::function<void()> body) {
  std::unique_ptr<Thread> thread(new Thread(std::move(body)));
  const auto run = [](void* context) -> void* {
    (*static_cast<std::function<void()>*>(context))();
    return nullptr;
  };
  const int error = pthread_create(&thread->id_, nullptr, run, &thread->body_);
  if (error != 0) {
    return resource_exhausted(
        "threads", "expected one more thread, found none: " + std::string(std::strerror(error)));
  }
  thread->is_started_ = true;
  return thread;
}

Thread::~Thread() {
  if (is_started_) pthread_join(id_, nullptr);
}

}  // namespace chorus
