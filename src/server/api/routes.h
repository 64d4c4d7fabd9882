// Which function answers what.
#pragma once

#include <string>
#include <string_view>

#include "server/api/core.h"

namespace chorus::api {

enum class Access : uint8_t {
  kOpen,     // everybody
  kMetrics,  // as ServiceOptions::metrics_need_key says
  kKey,
};

struct Route {
  std::string_view method;
  std::string_view path;  // {id} stands for one segment, or for the rest where it comes last
  Access access = Access::kKey;
  bool generates = false;  // takes a place among the requests that do
  void (*run)(Core& core, const Call& call) = nullptr;
};

struct RouteMatch {
  const Route* route = nullptr;  // null: none of this method
  std::string name;              // in place of {id}, decoded
  std::string methods;           // of the path, "GET, DELETE"; empty: there is no such path
};

// HEAD is as GET.
RouteMatch find_route(std::string_view method, std::string_view path);

// With "%2F" and the like resolved; other percent signs stay.
std::string decode_path(std::string_view text);

}  // namespace chorus::api
