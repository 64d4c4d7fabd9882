// The web page of the server, a single document without anything from elsewhere.
#pragma once

#include <string_view>
#include <vector>

#include "server/http/exchange.h"

namespace chorus::web {

// The document, UTF-8.
std::string_view page();

// What goes with it: its kind, its ETag, and what keeps browsers from running or sending anything
// else. The policy names the page's own style and scripts by their hashes.
std::vector<http::Header> page_headers();

}  // namespace chorus::web
