// Drives SessionTable with arbitrary batches, as a hostile caller would. Nothing may crash, no
// session may change unless its inputs all passed, and what passed must be a well-formed step:
// FakeModule checks that.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "base/check.h"
#include "exec/fake_module.h"
#include "executors/module_executor.h"

namespace {

using namespace chorus;

// Reads numbers off the front of the input; zeros once it is used up.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), left_(size) {}
  bool empty() const { return left_ == 0; }
  uint8_t byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  // Mostly small, sometimes any, sometimes an edge.
  int32_t number() {
    const uint8_t kind = byte();
    if (kind < 200) return kind % 64 - 4;
    if (kind < 225) return std::numeric_limits<int32_t>::max() - kind % 3;
    if (kind < 240) return std::numeric_limits<int32_t>::min() + kind % 3;
    uint32_t any = 0;
    for (int i = 0; i < 4; ++i) any = any << 8 | byte();
    return static_cast<int32_t>(any);
  }

 private:
  const uint8_t* data_;
  size_t left_;
};

class Driver {
 public:
  Driver() : module_(options()) {
    executor_ = std::move(ModuleExecutor::create(module_, {4, 60})).value();
  }

  void event(Bytes& bytes) {
    switch (bytes.byte() % 8) {
      case 0:
        if (const auto id = executor_->open({}); id.ok()) sessions_.push_back(*id);
        break;
      case 1:
        executor_->close(session(bytes));
        break;
      case 2:
        if (const auto id = executor_->clone(session(bytes), bytes.number()); id.ok()) {
          sessions_.push_back(*id);
        }
        break;
      case 3: {
        SamplingParams params;
        params.temperature = static_cast<float>(bytes.number()) / 8;
        params.num_likeliest = bytes.number();
        const int32_t which = bytes.number();
        if ((which & 1) != 0) params.repetition_penalty = 1.5f;
        if ((which & 2) != 0) params.logit_bias = {{bytes.number(), 1.0f}};
        if ((which & 4) != 0) params.bad_sequences = {{bytes.number(), bytes.number()}};
        if ((which & 8) != 0) params.first_position = bytes.number();
        if ((which & 16) != 0) params.allowed_tokens = {bytes.number(), 1};
        (void)executor_->set_sampling(session(bytes), params);
        break;
      }
      case 4:
        (void)executor_->truncate(session(bytes), bytes.number());
        break;
      default:
        execute(bytes);
    }
    executor_->sessions().check_invariants();
    CHORUS_CHECK_EQ(module_.bad_reads(), 0);
  }

 private:
  static FakeModuleOptions options() {
    FakeModuleOptions options;
    options.groups = {{{0}, 6}, {{3}, 7}};
    options.methods[0].max_tokens = 8;
    options.vocabulary = 40;
    options.nan_kv_token = 38;
    options.nan_logits_token = 39;
    return options;
  }

  SessionId session(Bytes& bytes) {
    const uint8_t choice = bytes.byte();
    if (choice >= 240 || sessions_.empty()) return SessionId{choice};
    return sessions_[choice % sessions_.size()];  // some of them closed
  }

  BatchInput input(Bytes& bytes) {
    BatchInput input;
    input.session = session(bytes);
    const uint8_t shape = bytes.byte();
    if (shape != 0) {
      auto tokens = std::make_shared<std::vector<TokenId>>(bytes.byte() % 70);
      const bool wild = shape % 16 == 1;
      for (TokenId& token : *tokens) token = wild ? bytes.number() : bytes.byte() % 40;
      input.tokens = tokens;
    }
    // Half of them go on where their session ends, so that steps run too.
    const auto length = executor_->length(input.session);
    if (shape % 2 == 0 && length.ok() && input.tokens != nullptr) {
      input.position = *length;
      input.size = static_cast<int32_t>(input.tokens->size());
    } else {
      input.position = bytes.number();
      input.offset = bytes.number();
      input.size = bytes.number();
    }
    input.produce_output = (shape & 32) != 0;
    if ((shape & 64) != 0) input.score_from = bytes.number();
    return input;
  }

  void execute(Bytes& bytes) {
    std::vector<BatchInput> batch;
    for (int left = bytes.byte() % 10; left > 0; --left) batch.push_back(input(bytes));
    std::vector<Position> before;
    for (const BatchInput& each : batch) before.push_back(length_or_none(each.session));
    const uint8_t fault = bytes.byte();
    module_.set_faults({fault == 1, fault >= 2 && fault < 5 ? fault - 1 : 0, fault == 5});
    const Status status = executor_->execute(batch, output_);
    module_.set_faults({});
    CHORUS_CHECK_EQ(output_.inputs.size(), status.ok() ? batch.size() : 0);
    for (size_t i = 0; i < batch.size(); ++i) {
      const Position after = length_or_none(batch[i].session);
      if (!status.ok() || !output_.inputs[i].status.ok()) {
        CHORUS_CHECK_EQ(after, before[i]);
        continue;
      }
      const InputOutput& result = output_.inputs[i];
      CHORUS_CHECK_GE(after, batch[i].end());
      CHORUS_CHECK_EQ(result.sampled_count, batch[i].produce_output ? 1 : 0);
      for (const TokenScore& score : output_.scored(result)) {
        CHORUS_CHECK(score.id >= 0 && score.id < 40);
        CHORUS_CHECK_LE(output_.likeliest_of(score).size(), 40u);
      }
    }
  }

  Position length_or_none(SessionId id) const {
    const auto length = executor_->length(id);
    return length.ok() ? *length : -1;
  }

  FakeModule module_;
  std::unique_ptr<ModuleExecutor> executor_;
  std::vector<SessionId> sessions_;
  BatchOutput output_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes bytes(data, size);
  Driver driver;
  for (int events = 0; events < 64 && !bytes.empty(); ++events) driver.event(bytes);
  return 0;
}
