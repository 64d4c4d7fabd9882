// The messages of a chat, as clients send them and as templates take them.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "json/value.h"

namespace chorus::api {

// Roles are developer (which templates know as system), system, user, assistant and tool. A content
// is a text or a list of text parts, which become lines. What else a message may have (name,
// tool_calls with arguments as objects, tool_call_id) is kept for the template. Errors:
// kInvalidArgument, and kUnimplemented for other kinds of parts, with "messages[1].content[0].type"
// and the like.
Result<json::Array> read_messages(const json::Value& value, const std::string& name);

// The content of a message that read_messages returned.
std::string_view content_of(const json::Value& message);
std::string_view role_of(const json::Value& message);

// A chat that was rendered without what opens an answer, cut behind the content of its last
// message, so that the model goes on with that. kInvalidArgument (continue_final_message) where
// the template does not show it.
Result<std::string> cut_behind_content(std::string rendered, std::string_view content);

}  // namespace chorus::api
