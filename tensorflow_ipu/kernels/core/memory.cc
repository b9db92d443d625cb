#include "tensorflow_ipu/kernels/core/memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace tensorflow_ipu::core {

namespace {

constexpr std::size_t kUnknown = std::numeric_limits<std::size_t>::max();

// The number after the word `name`.
std::optional<std::size_t> NumberBehind(const char* path, const std::string& name) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    std::size_t number;
    if (word == name && file >> number) return number;
  }
  return std::nullopt;
}

// The first number of a file. A container without a limit has none.
std::optional<std::size_t> NumberIn(const char* path) {
  std::ifstream file(path);
  std::size_t number;
  if (file >> number) return number;
  return std::nullopt;
}

std::size_t OfMachine() {
  const auto available = NumberBehind("/proc/meminfo", "MemAvailable:");
  if (!available.has_value()) return kUnknown;
  return 1024 * (*available + NumberBehind("/proc/meminfo", "SwapFree:").value_or(0));
}

std::size_t OfContainer() {
  const auto limit = NumberIn("/sys/fs/cgroup/memory.max");
  const auto used = NumberIn("/sys/fs/cgroup/memory.current");
  if (!limit.has_value() || !used.has_value()) return kUnknown;
  // The page cache, which the system gives up first.
  const std::size_t files = NumberBehind("/sys/fs/cgroup/memory.stat", "inactive_file").value_or(0) +
                            NumberBehind("/sys/fs/cgroup/memory.stat", "active_file").value_or(0);
  const std::size_t swap = NumberIn("/sys/fs/cgroup/memory.swap.max").value_or(0);
  return swap + *limit - std::min(*limit, *used - std::min(*used, files));
}

}  // namespace

std::size_t AvailableMemory() { return std::min(OfMachine(), OfContainer()); }

}  // namespace tensorflow_ipu::core
