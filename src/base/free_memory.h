// How much memory there is.
#pragma once

#include <cstdint>

namespace chorus {

// Bytes that this process may still take: the machine's free memory, at most what its cgroup and
// its limit of address space (RLIMIT_AS) leave.
int64_t free_memory_bytes();

// Bytes that this process could take if it were alone: the machine's memory, at most the limit of
// its cgroup.
int64_t total_memory_bytes();

}  // namespace chorus
