// Entity tags, by which a client asks whether what it keeps is still current.
#pragma once

#include <string_view>

namespace chorus::http {

// Whether the value of If-None-Match names `entity_tag`, in quotes: as "*" or as one of a list, by
// the weak comparison, to which W/ makes no difference (RFC 9110, 8.8.3.2 and 13.1.2). What comes
// after a mistake in the list names nothing. Thread: any.
bool names_entity_tag(std::string_view if_none_match, std::string_view entity_tag);

}  // namespace chorus::http
