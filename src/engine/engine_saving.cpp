// EngineLoop: sessions as values, to save and to load.
#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/engine_loop.h"

namespace chorus {
namespace {

class VectorSink final : public ByteSink {
 public:
  explicit VectorSink(std::vector<std::byte>& bytes) : bytes_(bytes) {}
  Status write(std::span<const std::byte> bytes) override {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return {};
  }

 private:
  std::vector<std::byte>& bytes_;
};

class SpanSource final : public ByteSource {
 public:
  explicit SpanSource(std::span<const std::byte> bytes) : bytes_(bytes) {}
  Status read(std::span<std::byte> out) override {
    if (out.size() > bytes_.size()) return data_loss("kv", "it ends too early");
    std::memcpy(out.data(), bytes_.data(), out.size());
    bytes_ = bytes_.subspan(out.size());
    return {};
  }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace

// What the executor has beyond the context was not delivered, and is not part of the session.
void EngineLoop::drop_surplus(SessionRecord& record) {
  if (record.executor_length <= record.position()) return;
  if (executor_.truncate(record.id, record.position()).ok()) {
    set_executor_length(record, record.position());
  } else {
    give_up_blocks(record);  // a window has left behind what the shorter session needs
  }
}

void EngineLoop::handle(SaveCommand& command) {
  SessionRecord* record = find(command.session);
  CHORUS_CHECK(record != nullptr && !record->live.has_value());
  if (!record->broken.ok()) {
    command.reply->set(record->broken);
    return;
  }
  drop_surplus(*record);
  SavedSession saved;
  saved.tokens = record->context;
  saved.sampling = record->sampling;
  saved.format = port_.options.executor.kv_format;
  if (record->executor_length > 0) {
    VectorSink sink(saved.kv);
    if (Status status = executor_.save(record->id, sink); !status.ok()) {
      command.reply->set(std::move(status));
      return;
    }
  }
  command.reply->set(std::move(saved));
}

// Whether blocks for so many tokens are there once all idle sessions have given theirs: nobody
// gives way to a session that would come without its KV all the same. As much as the session's next
// step needs, which may be more than what it is loaded with.
bool EngineLoop::could_hold(Position num_tokens) const {
  std::vector<SessionId> idle;
  for (const auto& [id, record] : by_id_) {
    if (!record->live.has_value() || !record->live->is_running) idle.push_back(id);
  }
  const KvCapacity& capacity = port_.options.capacity;
  for (size_t i = 0; i < capacity.groups.size(); ++i) {
    const auto group = static_cast<int32_t>(i);
    if (capacity.blocks_for(capacity.groups[i], num_tokens) >
        executor_.available_blocks(group) + executor_.releasable_blocks(idle, group))
      return false;
  }
  return true;
}

// Opens the session with the saved KV, taking blocks from idle sessions, or else without.
Result<SessionId> EngineLoop::open_saved(const SessionOptions& options,
                                         const LoadCommand& command) {
  while (command.with_kv && !command.saved->kv.empty()) {
    SpanSource source(command.saved->kv);
    auto loaded = executor_.load(options, command.saved->tokens, source);
    if (loaded.ok()) {
      const Position length = executor_.length(*loaded).value();
      const bool fits =
          source.at_end() && length <= static_cast<Position>(command.saved->tokens.size());
      if (fits) return loaded;
      executor_.close(*loaded);
      return data_loss("kv", "it is not the KV of the session's tokens");
    }
    if (loaded.status().code() != Code::kResourceExhausted) return loaded;
    if (!could_hold(static_cast<Position>(command.saved->tokens.size()))) break;
    SessionRecord* idle = idle_victim(1, nullptr);
    if (idle == nullptr) idle = idle_victim(0, nullptr);
    if (idle == nullptr) break;
    evict(*idle);
  }
  return executor_.open(options);
}

void EngineLoop::handle(LoadCommand& command) {
  SessionRecord& record = sessions_[command.session->key];
  record.shared = std::move(command.session);
  record.options = command.options;
  record.options.indexed = record.options.indexed && port_.options.prefix_cache;
  auto opened = open_saved(record.options, command);
  if (!opened.ok()) {
    record.broken = opened.status();
    command.reply->set(std::move(opened));
    return;
  }
  record.id = *opened;
  by_id_[record.id] = &record;
  record.context = command.saved->tokens;
  record.sampling = command.saved->sampling;
  record.last_used = next_use_++;
  record.was_loaded = true;
  set_executor_length(record, executor_.length(record.id).value());
  command.reply->set(std::move(opened));
}

}  // namespace chorus
