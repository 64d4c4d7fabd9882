#include "machine_load.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

namespace chorus::cli {

namespace {

// The text behind "name:" or "name\t:" in a file of such lines.
std::string line_of(const char* path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) continue;
    const size_t colon = line.find_first_not_of(" \t", name.size());
    if (colon == line.npos || line[colon] != ':') continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == line.npos ? "" : line.substr(begin);
  }
  return "";
}

int64_t status_bytes(const char* name) {
  int64_t kibibytes = 0;
  std::istringstream(line_of("/proc/self/status", name)) >> kibibytes;
  return kibibytes * 1024;
}

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

}  // namespace

std::string cpu_model() {
  std::string name = line_of("/proc/cpuinfo", "model name");
  return name.empty() ? "unknown" : name;
}

int64_t resident_bytes() { return status_bytes("VmRSS"); }
int64_t peak_resident_bytes() { return status_bytes("VmHWM"); }
void forget_peak_resident_bytes() { std::ofstream("/proc/self/clear_refs") << "5"; }

LoadMeter::Times LoadMeter::now() {
  Times times;
  std::ifstream file("/proc/stat");
  std::string name;
  double ticks[8] = {};  // user nice system idle iowait irq softirq steal
  if (!(file >> name) || name != "cpu") return times;
  for (double& tick : ticks) {
    if (!(file >> tick)) return times;
  }
  const auto per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  for (const double tick : ticks) times.total_s += tick / per_second;
  times.busy_s = times.total_s - (ticks[3] + ticks[4]) / per_second;
  rusage own = {};
  if (getrusage(RUSAGE_SELF, &own) != 0) return times;
  times.own_s = seconds(own.ru_utime) + seconds(own.ru_stime);
  times.known = true;
  return times;
}

LoadMeter::LoadMeter() : start_(now()) {}

std::optional<double> LoadMeter::foreign_share() const {
  constexpr double kShortest = 0.2;
  const Times end = now();
  if (!start_.known || !end.known) return std::nullopt;
  const double total = end.total_s - start_.total_s;
  const double processors = std::max(1.0, static_cast<double>(std::thread::hardware_concurrency()));
  if (total < kShortest * processors) return std::nullopt;
  const double foreign = (end.busy_s - start_.busy_s) - (end.own_s - start_.own_s);
  return std::clamp(foreign / total, 0.0, 1.0);
}

}  // namespace chorus::cli
