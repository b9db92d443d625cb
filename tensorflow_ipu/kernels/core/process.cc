#include "tensorflow_ipu/kernels/core/process.h"

#include <dirent.h>
#include <sys/syscall.h>
#include <unistd.h>

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

namespace {

// R, S, D and so on; 0 if the thread has ended.
char StateOf(const std::string& thread) {
  std::ifstream file("/proc/self/task/" + thread + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t name_end = text.rfind(')');  // "12 (its name, of any letters) S 1 ..."
  return name_end == std::string::npos || name_end + 2 >= text.size() ? '\0' : text[name_end + 2];
}

}  // namespace

bool OthersCompute() {
  DIR* const threads = opendir("/proc/self/task");
  if (threads == nullptr) return false;
  const std::string own = std::to_string(syscall(SYS_gettid));
  bool some = false;
  while (const dirent* const entry = readdir(threads)) {
    const std::string thread = entry->d_name;
    if (thread == own || thread.front() == '.') continue;
    const char state = StateOf(thread);
    if (state == 'R' || state == 'D') {
      some = true;
      break;
    }
  }
  closedir(threads);
  return some;
}

}  // namespace tensorflow_ipu::core
