#include "batching/decode_first_scheduler.h"

#include <algorithm>
#include <array>
#include <gtest/gtest.h>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/random.h"

namespace chorus {
namespace {

constexpr int32_t kMaxInt = std::numeric_limits<int32_t>::max();

SessionId session(uint64_t number) { return SessionId{number}; }

Task make_task(uint64_t id, uint64_t session_number, bool is_decode, int32_t size,
               bool produce_output = false) {
  Task task;
  task.id = TaskId{id};
  task.input.session = session(session_number);
  task.input.size = size;
  task.input.produce_output = is_decode || produce_output;
  task.is_decode = is_decode;
  return task;
}
Task decode(uint64_t id, uint64_t session_number) {
  return make_task(id, session_number, true, 1, true);
}
Task chunk(uint64_t id, uint64_t session_number, int32_t size, bool produce_output = false) {
  return make_task(id, session_number, false, size, produce_output);
}

std::unique_ptr<DecodeFirstScheduler> make(int32_t tokens, int32_t decodes, int32_t chunk_size) {
  auto scheduler = DecodeFirstScheduler::create(
      {.max_batch_tokens = tokens, .max_decode_sequences = decodes, .prefill_chunk = chunk_size});
  EXPECT_TRUE(scheduler.ok()) << scheduler.status().to_string();
  return std::move(scheduler).value();
}

bool submit(DecodeFirstScheduler& scheduler, std::vector<Task> tasks) {
  return scheduler.submit(tasks);
}

std::vector<uint64_t> ids_of(const std::vector<Task>& tasks) {
  std::vector<uint64_t> ids;
  for (const Task& task : tasks) ids.push_back(static_cast<uint64_t>(task.id));
  return ids;
}

// Id, offset, size and whether output is asked for, of each.
std::vector<std::array<int64_t, 4>> inputs_of(const std::vector<Task>& tasks) {
  std::vector<std::array<int64_t, 4>> inputs;
  for (const Task& task : tasks)
    inputs.push_back({static_cast<int64_t>(task.id), task.input.offset, task.input.size,
                      task.input.produce_output});
  return inputs;
}

std::vector<uint64_t> next_ids(DecodeFirstScheduler& scheduler) {
  std::vector<Task> batch;
  scheduler.get_work(scheduler.full_budget(), batch);
  scheduler.check_invariants();
  return ids_of(batch);
}

using Ids = std::vector<uint64_t>;

TEST(DecodeFirstScheduler, LimitsAreCheckedAndDerived) {
  struct Case {
    SchedulerLimits given;
    SchedulerLimits derived;
    std::string field;  // empty: accepted
  };
  const std::vector<Case> cases = {
      {{}, {544, 32, 512}, ""},
      {{.max_batch_tokens = 100}, {100, 32, 68}, ""},
      {{.max_batch_tokens = 2000}, {2000, 32, 512}, ""},
      {{.max_batch_tokens = 2}, {2, 1, 1}, ""},
      {{.max_batch_tokens = 1}, {}, "max_batch_tokens"},
      {{.max_decode_sequences = 4}, {516, 4, 512}, ""},
      {{.prefill_chunk = 7}, {39, 32, 7}, ""},
      {{.max_batch_tokens = 10, .prefill_chunk = 7}, {10, 3, 7}, ""},
      {{.max_batch_tokens = 10, .prefill_chunk = 9}, {10, 1, 9}, ""},
      {{.max_batch_tokens = 10, .prefill_chunk = 10}, {}, "prefill_chunk"},
      {{.max_batch_tokens = 10, .max_decode_sequences = 9}, {10, 9, 1}, ""},
      {{.max_batch_tokens = 10, .max_decode_sequences = 10}, {}, "max_batch_tokens"},
      {{.max_decode_sequences = 3, .prefill_chunk = 5}, {8, 3, 5}, ""},
      {{10, 4, 6}, {10, 4, 6}, ""},  // chunk == budget - cap
      {{10, 4, 7}, {}, "prefill_chunk"},
      {{-1, 0, 0}, {}, "max_batch_tokens"},
      {{0, -2, 0}, {}, "max_decode_sequences"},
      {{0, 0, -3}, {}, "prefill_chunk"},
      {{0, kMaxInt, kMaxInt}, {}, "prefill_chunk"},
      {{0, 1, kMaxInt}, {}, "prefill_chunk"},
      {{kMaxInt, 1, kMaxInt - 1}, {kMaxInt, 1, kMaxInt - 1}, ""},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(std::to_string(c.given.max_batch_tokens) + " " +
                 std::to_string(c.given.max_decode_sequences) + " " +
                 std::to_string(c.given.prefill_chunk));
    const auto scheduler = DecodeFirstScheduler::create(c.given);
    ASSERT_EQ(scheduler.ok(), c.field.empty());
    if (!scheduler.ok()) {
      EXPECT_EQ(scheduler.status().code(), Code::kInvalidArgument);
      EXPECT_EQ(scheduler.status().field(), c.field);
    } else {
      EXPECT_EQ((*scheduler)->limits(), c.derived);
    }
  }
}

TEST(DecodeFirstScheduler, SubmitIsAllOrNothing) {
  const auto scheduler = make(16, 4, 8);
  ASSERT_TRUE(submit(*scheduler, {chunk(1, 1, 8)}));
  EXPECT_FALSE(submit(*scheduler, {chunk(2, 2, 4), chunk(1, 2, 4)})) << "id 1 is queued";
  EXPECT_FALSE(submit(*scheduler, {chunk(2, 2, 4), chunk(2, 3, 4)})) << "id 2 twice";
  EXPECT_FALSE(submit(*scheduler, {chunk(2, 2, 4), chunk(3, 2, 0)})) << "empty";
  EXPECT_FALSE(submit(*scheduler, {chunk(2, 2, 4), chunk(3, 2, -1)})) << "negative";
  EXPECT_FALSE(submit(*scheduler, {chunk(2, 2, 4), chunk(3, 2, 9)})) << "chunk too wide";
  EXPECT_FALSE(submit(*scheduler, {decode(2, 2), make_task(3, 3, true, 2)})) << "wide decode";
  scheduler->check_invariants();
  EXPECT_EQ(scheduler->num_queued(), 1);
  EXPECT_EQ(next_ids(*scheduler), Ids{1});
  EXPECT_FALSE(scheduler->has_work());
  EXPECT_TRUE(submit(*scheduler, {chunk(1, 2, 4), chunk(2, 2, 4)})) << "ids are free again";
  EXPECT_TRUE(submit(*scheduler, {}));
}

TEST(DecodeFirstScheduler, DecodesComeFirstAndOnePerSession) {
  const auto scheduler = make(10, 2, 8);
  ASSERT_TRUE(submit(*scheduler, {chunk(1, 9, 8), decode(2, 1), decode(3, 1), decode(4, 2),
                                  decode(5, 3), chunk(6, 1, 2)}));
  // Session 1 decodes, so neither its second decode nor its chunk joins.
  EXPECT_EQ(next_ids(*scheduler), (Ids{2, 4, 1}));
  EXPECT_EQ(next_ids(*scheduler), (Ids{3, 5}));
  EXPECT_EQ(next_ids(*scheduler), (Ids{6}));
}

TEST(DecodeFirstScheduler, ChunksRotateAndADeferredOneKeepsItsTurn) {
  const auto scheduler = make(10, 1, 9);
  ASSERT_TRUE(
      submit(*scheduler, {chunk(11, 1, 4), chunk(12, 1, 4), chunk(13, 1, 9), chunk(21, 2, 9),
                          chunk(22, 2, 1), chunk(31, 3, 3), chunk(32, 3, 3), chunk(33, 3, 3)}));
  // 4 + (9 is too large, 2 keeps its turn) 3, then 6 of 10 are left for the second pass: 2 is still
  // too large, 1 is served again? 4 > 3 left, then 3 takes the rest.
  EXPECT_EQ(next_ids(*scheduler), (Ids{11, 31, 32}));
  // Session 2 is first now. The token left goes to its next chunk in the second pass.
  EXPECT_EQ(next_ids(*scheduler), (Ids{21, 22}));
  EXPECT_EQ(next_ids(*scheduler), (Ids{12, 33}));
  EXPECT_EQ(next_ids(*scheduler), (Ids{13}));
}

TEST(DecodeFirstScheduler, InterleavedChunksOfTwoSessions) {
  const auto scheduler = make(20, 1, 5);
  ASSERT_TRUE(submit(*scheduler, {chunk(1, 1, 5), chunk(2, 1, 5, true), chunk(3, 1, 5),
                                  chunk(4, 2, 5), chunk(5, 2, 5)}));
  // A1 B1 A2 B2; A2 asked for output, so A3 waits for the next step.
  EXPECT_EQ(next_ids(*scheduler), (Ids{1, 4, 2, 5}));
  EXPECT_EQ(next_ids(*scheduler), (Ids{3}));
}

TEST(DecodeFirstScheduler, BudgetOfTheStepLimits) {
  const auto scheduler = make(16, 8, 8);
  ASSERT_TRUE(submit(*scheduler, {decode(1, 1), decode(2, 2), decode(3, 3), chunk(4, 4, 8)}));
  std::vector<Task> batch;
  scheduler->get_work({.tokens = 5, .decodes = 2}, batch);
  EXPECT_EQ(ids_of(batch), (Ids{1, 2}));
  scheduler->get_work({.tokens = 0, .decodes = 2}, batch);
  EXPECT_TRUE(batch.empty());
  scheduler->get_work({.tokens = 8, .decodes = 0}, batch);
  EXPECT_EQ(ids_of(batch), (Ids{4}));
}

TEST(DecodeFirstScheduler, AChunkBesideDecodesIsCutAndRotates) {
  const auto scheduler = make(16, 4, 8);
  ASSERT_TRUE(submit(*scheduler, {decode(1, 1), chunk(2, 2, 8, true), chunk(3, 3, 8)}));
  StepBudget budget = scheduler->full_budget();
  budget.prefill_beside_decodes = 3;
  std::vector<Task> batch;
  scheduler->get_work(budget, batch);
  ASSERT_EQ(ids_of(batch), (Ids{1, 2}));
  EXPECT_EQ(batch[1].input.size, 3);
  EXPECT_FALSE(batch[1].input.produce_output) << "the rest has it";
  EXPECT_FALSE(submit(*scheduler, {chunk(2, 4, 1)})) << "the rest has the id, too";
  EXPECT_EQ(scheduler->num_queued(), 2);
  ASSERT_TRUE(submit(*scheduler, {decode(4, 1)}));
  scheduler->get_work(budget, batch);
  ASSERT_EQ(ids_of(batch), (Ids{4, 3})) << "the other session's turn";
  // Without a decode nothing is cut.
  scheduler->get_work(budget, batch);
  ASSERT_EQ(ids_of(batch), (Ids{2, 3}));
  EXPECT_EQ(batch[0].input.offset, 3);
  EXPECT_EQ(batch[0].input.size, 5);
  EXPECT_TRUE(batch[0].input.produce_output);
  EXPECT_FALSE(scheduler->has_work());
}

TEST(DecodeFirstScheduler, CancelReturnsQueuedTasksAndLeavesOnePlace) {
  const auto scheduler = make(16, 4, 8);
  ASSERT_TRUE(submit(*scheduler, {chunk(1, 1, 8), chunk(2, 1, 8), decode(3, 1), chunk(4, 2, 8)}));
  std::vector<Task> batch;
  scheduler->get_work({.tokens = 1, .decodes = 1}, batch);
  EXPECT_EQ(ids_of(batch), Ids{3});
  EXPECT_EQ(ids_of(scheduler->cancel(session(1))), (Ids{1, 2}));
  EXPECT_TRUE(scheduler->cancel(session(1)).empty());
  EXPECT_TRUE(scheduler->cancel(session(77)).empty());
  ASSERT_TRUE(submit(*scheduler, {chunk(1, 1, 8), chunk(2, 1, 8)}));
  EXPECT_EQ(next_ids(*scheduler), (Ids{4, 1})) << "one place, behind session 2";
  EXPECT_EQ(next_ids(*scheduler), (Ids{2}));
  ASSERT_TRUE(submit(*scheduler, {chunk(1, 1, 8), decode(2, 2)}));
  scheduler->clear();
  EXPECT_FALSE(scheduler->has_work());
  EXPECT_TRUE(next_ids(*scheduler).empty());
  EXPECT_TRUE(submit(*scheduler, {chunk(1, 1, 8), decode(2, 2)}));
}

TEST(DecodeFirstScheduler, SaturatedDecodesDoNotStarvePrefill) {
  constexpr uint64_t kSessions = 5;
  const auto scheduler = make(12, 4, 8);
  uint64_t id = 1;
  std::map<uint64_t, int> served;
  std::vector<Task> batch;
  for (uint64_t s = 0; s < 8; ++s) ASSERT_TRUE(submit(*scheduler, {decode(id++, 100 + s)}));
  for (uint64_t s = 0; s < kSessions; ++s) ASSERT_TRUE(submit(*scheduler, {chunk(id++, s, 8)}));
  for (int step = 1; step <= 50; ++step) {
    scheduler->get_work(scheduler->full_budget(), batch);
    ASSERT_EQ(batch.size(), 5u) << "four decodes and one full chunk, step " << step;
    for (const Task& task : std::vector<Task>(batch)) {
      const auto number = static_cast<uint64_t>(task.input.session);
      ASSERT_TRUE(
          submit(*scheduler, {task.is_decode ? decode(id++, number) : chunk(id++, number, 8)}));
      if (!task.is_decode) ++served[number];
    }
    for (uint64_t s = 0; s < kSessions; ++s)
      ASSERT_GE(served[s], step / static_cast<int>(kSessions)) << "session " << s;
  }
}

// The same contract over plain lists.
class NaiveScheduler {
 public:
  explicit NaiveScheduler(SchedulerLimits limits) : limits_(limits) {}

  bool submit(const std::vector<Task>& tasks) {
    std::set<TaskId> ids;
    for (const Task& task : queue_) ids.insert(task.id);
    for (const Task& task : tasks) {
      if (!ids.insert(task.id).second || task.input.size < 1) return false;
      if (task.input.size > (task.is_decode ? 1 : limits_.prefill_chunk)) return false;
    }
    for (Task task : tasks) {
      task.order = ++order_;
      if (!task.is_decode && !has_chunk(task.input.session)) turns_[task.input.session] = ++turn_;
      queue_.push_back(task);
    }
    return true;
  }

  std::vector<Task> get_work(int32_t tokens, int32_t decodes, int32_t prefill_beside_decodes) {
    std::vector<Task> batch;
    std::set<SessionId> closed;
    for (const Task& task : std::vector<Task>(queue_)) {
      if (!task.is_decode || decodes == 0 || tokens == 0) continue;
      if (closed.contains(task.input.session)) continue;
      closed.insert(task.input.session);
      --decodes;
      --tokens;
      batch.push_back(task);
      remove(task.id);
    }
    int32_t prefill = batch.empty() ? kMaxInt : prefill_beside_decodes;
    for (bool moved = true; moved;) {
      moved = false;
      std::vector<std::pair<uint64_t, SessionId>> rotation;
      for (const auto& [id, turn] : turns_)
        if (has_chunk(id)) rotation.push_back({turn, id});
      std::sort(rotation.begin(), rotation.end());
      for (const auto& [turn, id] : rotation) {
        if (closed.contains(id) || tokens == 0 || prefill == 0) continue;
        Task task = first_chunk(id);
        Task rest = task;
        task.input.size = std::min(task.input.size, prefill);
        if (task.input.size > tokens) continue;
        tokens -= task.input.size;
        prefill -= task.input.size;
        remove(task.id);
        if (task.input.size < rest.input.size) {
          rest.input.offset += task.input.size;
          rest.input.size -= task.input.size;
          task.input.produce_output = false;
          insert(rest);
        }
        if (task.input.produce_output) closed.insert(id);
        task.turn = turn;
        batch.push_back(task);
        if (has_chunk(id)) turns_[id] = ++turn_;
        moved = true;
      }
    }
    return batch;
  }

  void put_back(const Task& task) {
    if (!task.is_decode) {
      const SessionId id = task.input.session;
      turns_[id] = has_chunk(id) ? std::min(turns_[id], task.turn) : task.turn;
    }
    Task whole = task;
    for (const Task& rest : queue_) {
      if (rest.id != task.id) continue;
      whole.input.size += rest.input.size;
      whole.input.produce_output = rest.input.produce_output;
    }
    remove(task.id);
    insert(whole);
  }

  std::vector<Task> cancel(SessionId id) {
    std::vector<Task> dropped;
    for (const Task& task : queue_)
      if (task.input.session == id) dropped.push_back(task);
    for (const Task& task : dropped) remove(task.id);
    return dropped;
  }

  size_t size() const { return queue_.size(); }

 private:
  bool has_chunk(SessionId id) const {
    return std::any_of(queue_.begin(), queue_.end(), [&](const Task& task) {
      return !task.is_decode && task.input.session == id;
    });
  }
  Task first_chunk(SessionId id) const {
    return *std::find_if(queue_.begin(), queue_.end(), [&](const Task& task) {
      return !task.is_decode && task.input.session == id;
    });
  }
  void insert(const Task& task) {
    queue_.push_back(task);
    std::sort(queue_.begin(), queue_.end(),
              [](const Task& a, const Task& b) { return a.order < b.order; });
  }
  void remove(TaskId id) {
    std::erase_if(queue_, [&](const Task& task) { return task.id == id; });
  }

  SchedulerLimits limits_;
  std::vector<Task> queue_;  // in order of submission
  std::map<SessionId, uint64_t> turns_;
  uint64_t order_ = 0;
  uint64_t turn_ = 0;
};

void check_batch_rules(const std::vector<Task>& batch, const StepBudget& budget) {
  std::map<SessionId, int> num_decodes, num_outputs, num_chunks;
  int64_t sum = 0;
  int32_t decode_sum = 0;
  std::map<SessionId, uint64_t> last_order;
  for (const Task& task : batch) {
    const SessionId id = task.input.session;
    sum += task.input.size;
    decode_sum += task.is_decode ? 1 : 0;
    num_decodes[id] += task.is_decode ? 1 : 0;
    num_chunks[id] += task.is_decode ? 0 : 1;
    num_outputs[id] += task.input.produce_output ? 1 : 0;
    ASSERT_LE(num_decodes[id], 1);
    ASSERT_LE(num_outputs[id], 1);
    ASSERT_TRUE(num_decodes[id] == 0 || num_chunks[id] == 0);
    ASSERT_GT(task.order, last_order[id]) << "chunks of a session are in order";
    last_order[id] = task.order;
  }
  ASSERT_LE(sum, budget.tokens);
  ASSERT_LE(decode_sum, budget.decodes);
  ASSERT_TRUE(decode_sum == 0 || sum - decode_sum <= budget.prefill_beside_decodes);
}

void run_against_model(uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomStream random(seed);
  const auto decodes = static_cast<int32_t>(random.between(1, 4));
  const auto chunk_size = static_cast<int32_t>(random.between(1, 8));
  const auto scheduler =
      make(decodes + chunk_size + static_cast<int32_t>(random.between(0, 8)), decodes, chunk_size);
  NaiveScheduler model(scheduler->limits());
  uint64_t next_id = 1;
  std::vector<Task> batch;
  for (int event = 0; event < 300; ++event) {
    const uint64_t kind = random.below(10);
    if (kind < 4) {
      std::vector<Task> tasks;
      for (uint64_t n = random.below(4); n > 0; --n) {
        const bool is_decode = random.below(2) == 0;
        const bool reuse = random.below(25) == 0 && next_id > 1;
        tasks.push_back(
            make_task(reuse ? 1 + random.below(next_id - 1) : next_id, random.below(6), is_decode,
                      is_decode ? 1 : static_cast<int32_t>(random.between(1, chunk_size)),
                      random.below(3) == 0));
        if (!reuse) ++next_id;
        if (random.below(40) == 0) tasks.back().input.size = chunk_size + 1;
      }
      const bool accepted = model.submit(tasks);
      ASSERT_EQ(scheduler->submit(tasks), accepted);
    } else if (kind < 9) {
      StepBudget budget = scheduler->full_budget();
      if (random.below(3) == 0) budget.tokens = static_cast<int32_t>(random.below(12));
      if (random.below(3) == 0) budget.decodes = static_cast<int32_t>(random.below(5));
      if (random.below(3) == 0)
        budget.prefill_beside_decodes = static_cast<int32_t>(random.below(10));
      const std::vector<Task> expected =
          model.get_work(budget.tokens, budget.decodes, budget.prefill_beside_decodes);
      scheduler->get_work(budget, batch);
      ASSERT_EQ(inputs_of(batch), inputs_of(expected));
      check_batch_rules(batch, budget);
      // Some of the batch does not run, and returns in any order.
      for (size_t i = batch.size(); i > 1; --i) std::swap(batch[i - 1], batch[random.below(i)]);
      const uint64_t keep = random.below(3) == 0 ? random.below(batch.size() + 1) : batch.size();
      for (size_t i = keep; i < batch.size(); ++i) {
        model.put_back(batch[i]);
        scheduler->put_back(batch[i]);
      }
    } else {
      const SessionId id = session(random.below(7));
      ASSERT_EQ(inputs_of(scheduler->cancel(id)), inputs_of(model.cancel(id)));
    }
    ASSERT_EQ(static_cast<size_t>(scheduler->num_queued()), model.size());
    scheduler->check_invariants();
  }
}

TEST(DecodeFirstScheduler, MatchesTheNaiveModelUnderRandomSchedules) {
  for (uint64_t seed = 1; seed <= 200 && !::testing::Test::HasFailure(); ++seed)
    run_against_model(seed);
}

TEST(DecodeFirstScheduler, PuttingAWholeBatchBackChangesNothing) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomStream random(seed);
    const auto scheduler = make(24, 4, 8);
    uint64_t id = 1;
    for (int i = 0; i < 30; ++i) {
      const bool is_decode = random.below(3) == 0;
      ASSERT_TRUE(submit(*scheduler,
                         {make_task(id++, random.below(8), is_decode,
                                    is_decode ? 1 : static_cast<int32_t>(random.between(1, 8)))}));
    }
    while (scheduler->has_work()) {
      std::vector<Task> batch;
      StepBudget budget = scheduler->full_budget();
      budget.prefill_beside_decodes = static_cast<int32_t>(random.below(20));
      scheduler->get_work(budget, batch);
      const auto before = inputs_of(batch);
      for (size_t i = batch.size(); i > 1; --i) std::swap(batch[i - 1], batch[random.below(i)]);
      for (Task& task : batch) scheduler->put_back(std::move(task));
      scheduler->check_invariants();
      scheduler->get_work(budget, batch);
      ASSERT_EQ(inputs_of(batch), before);
    }
  }
}

}  // namespace
}  // namespace chorus
