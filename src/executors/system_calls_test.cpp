// A warm step makes no system call but the thread pool's sched_yield and futex: a process that
// makes another one while it runs steps is killed.
#include <csignal>
#include <cstddef>
#include <functional>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <memory>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "cpu/module.h"
#include "executors/module_executor.h"
#include "program/testing/tiny_program.h"

namespace chorus {
namespace {

// From now on, for all threads of this process. False where the system has no such filters.
bool allow_only_waiting() {
  // clock_gettime is a system call only where the kernel lends no clock to processes.
  constexpr long kAllowed[] = {SYS_sched_yield, SYS_futex, SYS_clock_gettime, SYS_exit_group};
  std::vector<sock_filter> filter = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const long call : kAllowed) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 1));
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
  const sock_fprog program = {static_cast<unsigned short>(filter.size()), filter.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

// How a child process ends that prepares, and then runs `work` with nothing but waiting allowed:
// its exit status (0: work was done, 1: it failed, 2: no filter) or minus the signal.
int run_filtered(const std::function<std::function<bool()>()>& prepare) {
  const pid_t child = fork();
  if (child == 0) {
    const std::function<bool()> work = prepare();
    if (!work) _exit(1);
    if (!allow_only_waiting()) _exit(2);
    _exit(work() ? 0 : 1);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

struct Steps {
  std::unique_ptr<Module> module;
  std::unique_ptr<ModuleExecutor> executor;
  std::vector<BatchInput> batch;
  BatchOutput output;

  bool run(Position position) {
    for (BatchInput& input : batch) input.position = position;
    if (!executor->execute(batch, output).ok()) return false;
    for (const InputOutput& each : output.inputs) {
      if (!each.status.ok()) return false;
    }
    return true;
  }
};

// Four sessions that decode, greedily and drawn, with logprobs; warm.
std::shared_ptr<Steps> warm_steps(int threads) {
  TinyOptions tiny;
  tiny.window = 40;
  auto steps = std::make_shared<Steps>();
  const auto program = std::make_shared<const Program>(tiny_program(tiny));
  auto module = cpu::CpuModule::create(program, {.threads = threads, .num_blocks = {64, 64}});
  if (!module.ok()) return nullptr;
  steps->module = std::move(*module);
  SessionExecutorOptions options;
  options.max_sessions = 4;
  options.max_session_tokens = 200;
  auto executor = ModuleExecutor::create(*steps->module, options);
  if (!executor.ok()) return nullptr;
  steps->executor = std::move(*executor);
  if (!steps->executor->initialize().ok()) return nullptr;
  for (int i = 0; i < 4; ++i) {
    BatchInput input;
    input.session = *steps->executor->open({});
    SamplingParams sampling;
    sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    sampling.logprobs = true;
    if (!steps->executor->set_sampling(input.session, sampling).ok()) return nullptr;
    input.tokens = std::make_shared<std::vector<TokenId>>(1, 7);
    input.size = 1;
    input.produce_output = true;
    steps->batch.push_back(input);
  }
  // Twice as far as later, so that everything has been as large as it gets.
  for (Position p = 0; p < 120; ++p) {
    if (!steps->run(p)) return nullptr;
  }
  for (const BatchInput& input : steps->batch) {
    if (!steps->executor->truncate(input.session, 0).ok()) return nullptr;
  }
  return steps;
}

TEST(SystemCalls, AWarmStepMakesNone) {
  for (const int threads : {1, 2}) {
    SCOPED_TRACE(threads);
    const int end = run_filtered([threads]() -> std::function<bool()> {
      const std::shared_ptr<Steps> steps = warm_steps(threads);
      if (steps == nullptr) return nullptr;
      return [steps] {
        for (Position p = 0; p < 60; ++p) {
          if (!steps->run(p)) return false;
        }
        return true;
      };
    });
    EXPECT_EQ(end, 0);
  }
}

// So that the test above can fail.
TEST(SystemCalls, AnyOtherEndsTheProcess) {
  const int end = run_filtered(
      []() -> std::function<bool()> { return [] { return syscall(SYS_getppid) != 0; }; });
  EXPECT_EQ(end, -SIGSYS);
}

}  // namespace
}  // namespace chorus
