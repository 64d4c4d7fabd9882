// Against DNS rebinding. A page of evil.example whose name is made to point at this machine has,
// for a browser, the server's own origin, so that no rule of other origins holds it back. What
// tells is the name by which the request came.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/http/exchange.h"

namespace chorus::api {

// As names are compared: in lower case, without port and the dot of the root.
std::string plain_host(std::string_view host);

// Whether `host`, as the header has it, is an address or a name that a stranger cannot have in
// the public DNS: one without a dot, or below localhost, local, internal or home.arpa (RFC 6761,
// 6762, 8375).
bool is_private_host(std::string_view host);

// Whether it came by a name that is neither private nor among `allowed` (as plain_host makes them;
// "*": all are), and a browser sent it, or what calls itself Mozilla; or it is of /v1/sessions,
// which shows what was said.
bool comes_by_foreign_name(const http::Request& request, const std::vector<std::string>& allowed);

}  // namespace chorus::api
