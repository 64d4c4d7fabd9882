// Names that nobody can guess.
#pragma once

#include <string>

namespace chorus::api {

// 32 hexadecimal digits from the system's entropy. Thread: any.
std::string random_id();

}  // namespace chorus::api
