// Members that are known from OpenAI, vLLM and llama.cpp, and ask for what is not offered.
#pragma once

#include "base/result.h"
#include "json/value.h"

namespace chorus::api {

// kUnimplemented for the first member of `request`, an object, that asks for something. Values that
// ask for nothing ("tool_choice": "none", "mirostat": 0) pass.
Status check_refused(const json::Value& request);

}  // namespace chorus::api
