#include "server/api/cors.h"

#include <algorithm>
#include <utility>

namespace chorus::api {

namespace {

class ExchangeWithHeaders final : public http::Exchange {
 public:
  ExchangeWithHeaders(std::shared_ptr<http::Exchange> inner, std::vector<http::Header> headers)
      : inner_(std::move(inner)), headers_(std::move(headers)) {}

  const http::Request& request() const override { return inner_->request(); }
  void respond(http::Response response) override {
    response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
    inner_->respond(std::move(response));
  }
  void begin_stream(int status, std::vector<http::Header> headers) override {
    headers.insert(headers.end(), headers_.begin(), headers_.end());
    inner_->begin_stream(status, std::move(headers));
  }
  void write(std::string bytes) override { inner_->write(std::move(bytes)); }
  void end_stream() override { inner_->end_stream(); }
  size_t unsent_bytes() const override { return inner_->unsent_bytes(); }
  bool client_left() const override { return inner_->client_left(); }
  void on_change(std::function<void()> action) override { inner_->on_change(std::move(action)); }
  void add_log_field(http::LogField field) override { inner_->add_log_field(std::move(field)); }

 private:
  const std::shared_ptr<http::Exchange> inner_;
  const std::vector<http::Header> headers_;
};

}  // namespace

bool is_allowed_origin(const std::vector<std::string>& allowed, std::string_view origin) {
  if (origin.empty()) return false;
  return std::any_of(allowed.begin(), allowed.end(),
                     [&](const auto& each) { return each == "*" || each == origin; });
}

std::vector<http::Header> cors_headers(const std::vector<std::string>& allowed,
                                       std::string_view origin) {
  if (!is_allowed_origin(allowed, origin)) return {};
  return {{"access-control-allow-origin", std::string(origin)},
          {"access-control-expose-headers", "x-request-id, retry-after"},
          {"vary", "origin"}};
}

http::Response options_response(const http::Request& request, std::string_view methods) {
  http::Response response{204, {{"allow", std::string(methods)}}, ""};
  if (request.header("access-control-request-method").empty()) return response;
  response.headers.push_back({"access-control-allow-methods", std::string(methods)});
  const std::string_view wanted = request.header("access-control-request-headers");
  if (!wanted.empty()) {
    response.headers.push_back({"access-control-allow-headers", std::string(wanted)});
  }
  response.headers.push_back({"access-control-max-age", "600"});
  return response;
}

std::shared_ptr<http::Exchange> with_headers(std::shared_ptr<http::Exchange> exchange,
                                             std::vector<http::Header> headers) {
  if (headers.empty()) return exchange;
  return std::make_shared<ExchangeWithHeaders>(std::move(exchange), std::move(headers));
}

}  // namespace chorus::api
