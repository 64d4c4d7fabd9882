#include "server/web/page.h"

#include <string>

#include "server/web/page_data.h"

namespace chorus::web {

std::string_view page() { return kPageData; }

std::vector<http::Header> page_headers() {
  return {{"content-type", "text/html; charset=utf-8"},
          {"etag", std::string(kPageTag)},
          {"cache-control", "no-cache"},  // kept, and asked for by its ETag
          {"content-security-policy", std::string(kPagePolicy)},
          {"x-content-type-options", "nosniff"},
          {"x-frame-options", "DENY"},
          {"referrer-policy", "no-referrer"},
          {"cross-origin-opener-policy", "same-origin"},
          {"cross-origin-resource-policy", "same-origin"}};
}

}  // namespace chorus::web
