// What embed.py writes of the sources of the page. For page.cpp alone.
#pragma once

#include <string_view>

namespace chorus::web {

extern const std::string_view kPageData;    // the page
extern const std::string_view kPageTag;     // its ETag, in quotes: of the page and of its policy
extern const std::string_view kPagePolicy;  // its Content-Security-Policy

}  // namespace chorus::web
