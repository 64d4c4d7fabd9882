// Against DNS rebinding. A page of evil.example whose name is made to point at this machine has,
// for a browser, the server's own origin, so that no rule of other origins holds it back. What
// tells is the name by which the request came.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/http/exchange.h"

namespace chorus::api {

// Whether `host`, as the header has it, is an address or a name that nobody can point elsewhere in
// the public DNS: localhost, one without a dot, or one below localhost, local, internal or
// home.arpa (RFC 6761, 6762, 8375).
bool is_private_host(std::string_view host);

// Whether a browser sent it, by a name that is neither private nor among `allowed` (in lower case,
// without a port; "*": all are).
bool comes_by_foreign_name(const http::Request& request, const std::vector<std::string>& allowed);

}  // namespace chorus::api
