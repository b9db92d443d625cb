#include "tensorflow_ipu/kernels/core/process.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <system_error>

namespace tensorflow_ipu::core {

namespace {

constexpr std::size_t kUnknown = std::numeric_limits<std::size_t>::max();

// The number after the word `name`.
std::optional<std::size_t> NumberAfter(const char* path, const std::string& name) {
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
  const auto available = NumberAfter("/proc/meminfo", "MemAvailable:");
  if (!available.has_value()) return kUnknown;
  return 1024 * (*available + NumberAfter("/proc/meminfo", "SwapFree:").value_or(0));
}

std::size_t OfContainer() {
  const auto limit = NumberIn("/sys/fs/cgroup/memory.max");
  const auto used = NumberIn("/sys/fs/cgroup/memory.current");
  if (!limit.has_value() || !used.has_value()) return kUnknown;
  // The page cache, which the system gives up first.
  const std::size_t files = NumberAfter("/sys/fs/cgroup/memory.stat", "inactive_file").value_or(0) +
                            NumberAfter("/sys/fs/cgroup/memory.stat", "active_file").value_or(0);
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
  const std::string own = std::to_string(syscall(SYS_gettid));
  std::error_code error;
  std::filesystem::directory_iterator thread("/proc/self/task", error);
  for (const std::filesystem::directory_iterator end; !error && thread != end; thread.increment(error)) {
    const std::string name = thread->path().filename().string();
    const char state = name == own ? 'S' : StateOf(name);
    if (state == 'R' || state == 'D') return true;
  }
  return false;
}

}  // namespace tensorflow_ipu::core
