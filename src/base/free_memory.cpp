#include "base/free_memory.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <sys/resource.h>
#include <unistd.h>

namespace chorus {

namespace {

// What a container's use counts besides, and the system takes back when memory is wanted: files
// that are cached.
int64_t reclaimable_bytes() {
  std::ifstream stat("/sys/fs/cgroup/memory.stat");
  int64_t bytes = 0;
  std::string name;
  for (int64_t value = 0; stat >> name >> value;) {
    if (name == "inactive_file" || name == "active_file") bytes += value;
  }
  return bytes;
}

}  // namespace

int64_t free_memory_bytes() {
  int64_t bytes = int64_t{sysconf(_SC_AVPHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  std::ifstream info("/proc/meminfo");
  std::string name;
  for (int64_t kib = 0; info >> name >> kib; info.ignore(64, '\n')) {
    if (name == "MemAvailable:") bytes = kib * 1024;
  }
  int64_t limit = 0;
  int64_t used = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit &&
      std::ifstream("/sys/fs/cgroup/memory.current") >> used) {
    used = std::max<int64_t>(0, used - reclaimable_bytes());
    bytes = std::min(bytes, std::max<int64_t>(0, limit - used));
  }
  rlimit address_space = {};
  int64_t pages = 0;
  if (getrlimit(RLIMIT_AS, &address_space) == 0 && address_space.rlim_cur != RLIM_INFINITY &&
      std::ifstream("/proc/self/statm") >> pages) {
    const int64_t left =
        static_cast<int64_t>(address_space.rlim_cur) - pages * sysconf(_SC_PAGESIZE);
    bytes = std::min(bytes, std::max<int64_t>(0, left));
  }
  return bytes;
}

int64_t total_memory_bytes() {
  const int64_t bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  int64_t limit = 0;
  return std::ifstream("/sys/fs/cgroup/memory.max") >> limit ? std::min(bytes, limit) : bytes;
}

}  // namespace chorus
