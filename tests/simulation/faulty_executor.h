// An executor whose calls can be made to fail, as those of a device that is lost for a moment.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "batching/session_executor.h"
#include "exec/executor.h"

namespace chorus::simulation {

// Every failure has the field `device` and changes nothing, as the contract of Executor demands.
class FaultyExecutor final : public Executor {
 public:
  enum Call : size_t { kExecute, kOpen, kClone, kSetSampling, kSink, kSource, kNumCalls };

  explicit FaultyExecutor(std::unique_ptr<SessionExecutor> inner) : inner_(std::move(inner)) {}

  // The `countdown`-th call from now fails: 1 is the next one. kSink and kSource count writes and
  // reads of a transfer.
  void fail(Call call, int32_t countdown) { countdowns_[call] = countdown; }
  int64_t num_faults(Call call) const { return num_faults_[call]; }
  const SessionTable& sessions() const { return inner_->sessions(); }

  Status initialize() override { return inner_->initialize(); }
  ExecutorInfo info() const override { return inner_->info(); }
  Result<SessionId> open(const SessionOptions& options) override {
    CHORUS_RETURN_IF_ERROR(attempt(kOpen));
    return inner_->open(options);
  }
  void close(SessionId session) override { inner_->close(session); }
  Result<SessionId> clone(SessionId source, Position upto) override {
    CHORUS_RETURN_IF_ERROR(attempt(kClone));
    return inner_->clone(source, upto);
  }
  Status set_sampling(SessionId session, const SamplingParams& params) override {
    CHORUS_RETURN_IF_ERROR(attempt(kSetSampling));
    return inner_->set_sampling(session, params);
  }
  Result<Position> length(SessionId session) const override { return inner_->length(session); }
  bool can_admit(std::span<const SessionDemand> demands) const override {
    return inner_->can_admit(demands);
  }
  int32_t available_blocks(int32_t group) const override { return inner_->available_blocks(group); }
  int64_t releasable_blocks(SessionId session) const override {
    return inner_->releasable_blocks(session);
  }
  int64_t releasable_blocks(std::span<const SessionId> sessions, int32_t group) const override {
    return inner_->releasable_blocks(sessions, group);
  }
  bool shares_last_block(SessionId session) const override {
    return inner_->shares_last_block(session);
  }
  Status execute(std::span<const BatchInput> batch, BatchOutput& output) override {
    if (Status status = attempt(kExecute); !status.ok()) {
      output.clear();
      return status;
    }
    return inner_->execute(batch, output);
  }
  Status truncate(SessionId session, Position length) override {
    return inner_->truncate(session, length);
  }
  Result<Position> attach_prefix(SessionId session, std::span<const TokenId> tokens) override {
    return inner_->attach_prefix(session, tokens);
  }
  Status release(SessionId session) override { return inner_->release(session); }
  Status save(SessionId session, ByteSink& sink) override {
    Sink faulty(*this, sink);
    return inner_->save(session, faulty);
  }
  Result<SessionId> load(const SessionOptions& options, std::span<const TokenId> tokens,
                         ByteSource& source) override {
    Source faulty(*this, source);
    return inner_->load(options, tokens, faulty);
  }
  Usage usage() const override { return inner_->usage(); }

 private:
  class Sink final : public ByteSink {
   public:
    Sink(FaultyExecutor& owner, ByteSink& inner) : owner_(owner), inner_(inner) {}
    Status write(std::span<const std::byte> bytes) override {
      CHORUS_RETURN_IF_ERROR(owner_.attempt(kSink));
      return inner_.write(bytes);
    }

   private:
    FaultyExecutor& owner_;
    ByteSink& inner_;
  };
  class Source final : public ByteSource {
   public:
    Source(FaultyExecutor& owner, ByteSource& inner) : owner_(owner), inner_(inner) {}
    Status read(std::span<std::byte> bytes) override {
      CHORUS_RETURN_IF_ERROR(owner_.attempt(kSource));
      return inner_.read(bytes);
    }

   private:
    FaultyExecutor& owner_;
    ByteSource& inner_;
  };

  Status attempt(Call call) {
    int32_t& countdown = countdowns_[call];
    if (countdown == 0 || --countdown > 0) return {};
    ++num_faults_[call];
    return unavailable("device", "failed by the simulation");
  }

  const std::unique_ptr<SessionExecutor> inner_;
  std::array<int32_t, kNumCalls> countdowns_{};
  std::array<int64_t, kNumCalls> num_faults_{};
};

}  // namespace chorus::simulation
