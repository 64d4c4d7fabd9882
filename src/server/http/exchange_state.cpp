#include "server/http/exchange_state.h"

#include "base/check.h"
#include "server/http/answer_head.h"

namespace chorus::http {

ExchangeState::ExchangeState(ReadRequest read, bool closes, std::shared_ptr<IoPort> port,
                             std::function<void()> wake)
    : read_(std::move(read)),
      port_(std::move(port)),
      wake_(std::move(wake)),
      closes_(closes || !read_.keep_alive) {}

// ---- For whoever answers ----

void ExchangeState::begin(int status, std::vector<Header> headers, bool is_stream, size_t length) {
  CHORUS_CHECK(phase_ == Phase::kWaiting);
  status_ = status;
  AnswerHead head{.status = status,
                  .headers = std::move(headers),
                  .framing = Framing::kLength,
                  .content_length = length,
                  .request_id = read_.request.id};
  if (status == 204 || status == 304) {
    head.framing = Framing::kNone;
  } else if (is_stream) {
    head.framing = read_.is_1_1 ? Framing::kChunked : Framing::kClose;
  }
  has_body_ = head.framing != Framing::kNone && read_.request.method != "HEAD";
  is_chunked_ = head.framing == Framing::kChunked;
  closes_ = closes_ || head.framing == Framing::kClose;
  head.keep_alive = !closes_;
  add(write_head(head));
}

void ExchangeState::add(std::string bytes) {
  if (client_left()) return;
  unsent_.fetch_add(bytes.size(), std::memory_order_relaxed);
  pending_.push_back(std::move(bytes));
}

void ExchangeState::wake_connection() {
  if (is_waking_ || !wake_) return;
  is_waking_ = true;
  port_->post([self = shared_from_this()] {
    std::function<void()> wake;
    {
      const MutexLock lock(self->mutex_);
      self->is_waking_ = false;
      wake = self->wake_;
    }
    if (wake) wake();
  });
}

void ExchangeState::respond(Response response) {
  const MutexLock lock(mutex_);
  begin(response.status, std::move(response.headers), false, response.body.size());
  if (has_body_ && !response.body.empty()) add(std::move(response.body));
  phase_ = Phase::kComplete;
  wake_connection();
}

void ExchangeState::begin_stream(int status, std::vector<Header> headers) {
  const MutexLock lock(mutex_);
  begin(status, std::move(headers), true, 0);
  phase_ = Phase::kStreaming;
  wake_connection();
}

void ExchangeState::write(std::string bytes) {
  const MutexLock lock(mutex_);
  CHORUS_CHECK(phase_ == Phase::kStreaming);
  if (bytes.empty() || !has_body_) return;
  add(is_chunked_ ? write_chunk(bytes) : std::move(bytes));
  wake_connection();
}

void ExchangeState::end_stream() {
  const MutexLock lock(mutex_);
  CHORUS_CHECK(phase_ == Phase::kStreaming);
  if (is_chunked_ && has_body_) add(std::string(kLastChunk));
  phase_ = Phase::kComplete;
  wake_connection();
}

void ExchangeState::abandon() {
  const MutexLock lock(mutex_);
  if (phase_ == Phase::kWaiting) {
    Response response = error_response(500, "the request was given up without an answer");
    begin(response.status, std::move(response.headers), false, response.body.size());
    if (has_body_) add(std::move(response.body));
    phase_ = Phase::kComplete;
  } else if (phase_ == Phase::kStreaming) {
    phase_ = Phase::kCut;
  }
  wake_connection();
}

void ExchangeState::on_change(std::function<void()> action) {
  auto shared = action ? std::make_shared<const std::function<void()>>(std::move(action)) : nullptr;
  const MutexLock lock(mutex_);
  if (client_left()) {
    if (shared != nullptr) port_->post([shared] { (*shared)(); });
  } else if (wake_) {  // else the answer has been sent
    std::swap(action_, shared);
  }
}

void ExchangeState::add_log_field(LogField field) {
  const MutexLock lock(mutex_);
  log_fields_.push_back(std::move(field));
}

// ---- For the connection ----

ExchangeState::Phase ExchangeState::take(std::vector<std::string>& bytes) {
  const MutexLock lock(mutex_);
  if (bytes.empty()) {
    std::swap(bytes, pending_);
  } else {
    bytes.insert(bytes.end(), std::make_move_iterator(pending_.begin()),
                 std::make_move_iterator(pending_.end()));
    pending_.clear();
  }
  return phase_;
}

void ExchangeState::note_sent(size_t num_bytes) {
  if (client_left()) return;  // nothing is counted any more
  unsent_.fetch_sub(num_bytes, std::memory_order_relaxed);
}

void ExchangeState::note_drained() {
  if (unsent_bytes() == 0) call_action();
}

void ExchangeState::leave() {
  {
    const MutexLock lock(mutex_);
    if (client_left()) return;
    pending_.clear();
    unsent_.store(0, std::memory_order_relaxed);
    has_left_.store(true, std::memory_order_release);  // last: who sees it sees nothing unsent
  }
  call_action();
}

void ExchangeState::close() {
  std::shared_ptr<const std::function<void()>> action;
  std::function<void()> wake;
  const MutexLock lock(mutex_);
  std::swap(action, action_);
  std::swap(wake, wake_);
}

bool ExchangeState::is_complete() const {
  const MutexLock lock(mutex_);
  return phase_ == Phase::kComplete || phase_ == Phase::kCut;
}

bool ExchangeState::closes_connection() const {
  const MutexLock lock(mutex_);
  return closes_ || phase_ != Phase::kComplete;
}

int ExchangeState::status() const {
  const MutexLock lock(mutex_);
  return status_;
}

std::vector<LogField> ExchangeState::take_log_fields() {
  const MutexLock lock(mutex_);
  return std::exchange(log_fields_, {});
}

// The action may let go of exchanges, or call them: it runs without the lock.
void ExchangeState::call_action() {
  std::shared_ptr<const std::function<void()>> action;
  {
    const MutexLock lock(mutex_);
    action = action_;
  }
  if (action != nullptr) (*action)();
}

// ---- The exchange ----

namespace {

class ConnectedExchange final : public Exchange {
 public:
  explicit ConnectedExchange(std::shared_ptr<ExchangeState> state) : state_(std::move(state)) {}
  ~ConnectedExchange() override { state_->abandon(); }
  ConnectedExchange(const ConnectedExchange&) = delete;
  ConnectedExchange& operator=(const ConnectedExchange&) = delete;

  const Request& request() const override { return state_->request(); }
  void respond(Response response) override { state_->respond(std::move(response)); }
  void begin_stream(int status, std::vector<Header> headers) override {
    state_->begin_stream(status, std::move(headers));
  }
  void write(std::string bytes) override { state_->write(std::move(bytes)); }
  void end_stream() override { state_->end_stream(); }
  size_t unsent_bytes() const override { return state_->unsent_bytes(); }
  bool client_left() const override { return state_->client_left(); }
  void on_change(std::function<void()> action) override { state_->on_change(std::move(action)); }
  void add_log_field(LogField field) override { state_->add_log_field(std::move(field)); }

 private:
  const std::shared_ptr<ExchangeState> state_;  // owners: this and the connection
};

}  // namespace

std::shared_ptr<Exchange> make_exchange(std::shared_ptr<ExchangeState> state) {
  return std::make_shared<ConnectedExchange>(std::move(state));
}

}  // namespace chorus::http
