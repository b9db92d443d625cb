#include "tensorflow_ipu/kernels/support/process.h"

#include <malloc.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

namespace tensorflow_ipu::core {

namespace {

constexpr std::size_t kUnknown = std::numeric_limits<std::size_t>::max();

// Returns the number after the word `name`.
std::optional<std::size_t> NumberAfter(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    std::size_t number;
    if (word == name && file >> number) return number;
  }
  return std::nullopt;
}

// Returns the first number of a file. The file of a group without a limit has none.
std::optional<std::size_t> NumberIn(const std::string& path) {
  std::ifstream file(path);
  std::size_t number;
  if (file >> number) return number;
  return std::nullopt;
}

// The file names of one version of the kernel's control groups.
struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* swap_limit;     // The limit of swap, or of memory and swap together.
  bool swap_includes_memory;  // True if it is the limit of memory and swap together.
  const char* inactive_file;  // In `memory.stat`: of the group and all groups below it.
  const char* active_file;
};
constexpr GroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "memory.memsw.limit_in_bytes", true,
                               "total_inactive_file",   "total_active_file"};
constexpr GroupFiles kVersion2{"memory.max", "memory.current", "memory.swap.max",
                               false,        "inactive_file",  "active_file"};

// Returns the memory that the processes of a group can use in addition to what they use now.
std::size_t AvailableInGroup(const std::string& folder, const GroupFiles& files, std::size_t free_swap) {
  const auto limit = NumberIn(folder + files.limit);
  const auto used = NumberIn(folder + files.usage);
  if (!limit.has_value() || !used.has_value()) return kUnknown;
  // The system reclaims the page cache first.
  const std::string statistics = folder + "memory.stat";
  const std::size_t reclaimable =
      NumberAfter(statistics, files.inactive_file).value_or(0) + NumberAfter(statistics, files.active_file).value_or(0);
  std::size_t swap = NumberIn(folder + files.swap_limit).value_or(0);
  if (files.swap_includes_memory) swap -= std::min(swap, *limit);
  return std::min(free_swap, swap) + *limit - std::min(*limit, *used - std::min(*used, reclaimable));
}

// A mounted hierarchy of control groups: `folder` shows the group `root` and the groups below it.
struct Hierarchy {
  const GroupFiles* files;
  std::string root;
  std::string folder;
};

// Reads `/proc/self/mountinfo`, whose lines look like this:
//
//   35 31 0:32 /root /sys/fs/cgroup/memory rw,relatime [optional fields] - cgroup cgroup rw,memory
std::vector<Hierarchy> Hierarchies(const std::string& system_root) {
  std::vector<Hierarchy> hierarchies;
  std::ifstream file(system_root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string skipped, root, folder, type, source, options;
    fields >> skipped >> skipped >> skipped >> root >> folder;
    while (fields >> skipped && skipped != "-") {
    }
    if (!(fields >> type >> source >> options)) continue;
    const bool counts_memory = ("," + options + ",").find(",memory,") != std::string::npos;
    if (type == "cgroup2") hierarchies.push_back({&kVersion2, root, system_root + folder});
    if (type == "cgroup" && counts_memory) hierarchies.push_back({&kVersion1, root, system_root + folder});
  }
  return hierarchies;
}

// Returns the group of this process that counts its memory. The lines of `/proc/self/cgroup` are `4:memory:/group` in
// version 1 and `0::/group` in version 2.
std::string GroupOfProcess(const std::string& system_root, const GroupFiles* files) {
  std::ifstream file(system_root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t controllers = line.find(':') + 1;
    const std::size_t group = line.find(':', controllers) + 1;
    if (controllers == 0 || group == 0) continue;
    const std::string names = "," + line.substr(controllers, group - controllers - 1) + ",";
    if (names.find(files == &kVersion2 ? ",," : ",memory,") != std::string::npos) return line.substr(group);
  }
  return "/";
}

// Returns the memory that the container leaves. A process is limited by its group and by each group above it.
std::size_t OfContainer(const std::string& system_root, std::size_t free_swap) {
  std::size_t lowest = kUnknown;
  for (const Hierarchy& hierarchy : Hierarchies(system_root)) {
    std::string group = GroupOfProcess(system_root, hierarchy.files);
    // In a container, the mount may show the container's group as its root, while /proc shows its path on the host.
    if (hierarchy.root != "/" && group.compare(0, hierarchy.root.size(), hierarchy.root) == 0) {
      group.erase(0, hierarchy.root.size());
    }
    for (std::size_t end = group.size();; end = group.rfind('/', end - 1)) {
      const std::string folder = hierarchy.folder + group.substr(0, end) + "/";
      lowest = std::min(lowest, AvailableInGroup(folder, *hierarchy.files, free_swap));
      if (end == 0 || end == std::string::npos) break;
    }
  }
  return lowest;
}

}  // namespace

std::size_t AvailableMemory(const std::string& system_root) {
  const std::string machine = system_root + "/proc/meminfo";
  const std::size_t free_swap = 1024 * NumberAfter(machine, "SwapFree:").value_or(0);
  const auto available = NumberAfter(machine, "MemAvailable:");
  const std::size_t of_machine = available.has_value() ? 1024 * *available + free_swap : kUnknown;
  return std::min(of_machine, OfContainer(system_root, free_swap));
}

void ReturnFreedMemory() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

namespace {

// Returns the state of a thread: R, S, D and so on; 0 if it has ended.
char StateOf(const std::string& thread) {
  std::ifstream file("/proc/self/task/" + thread + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t name_end = text.rfind(')');  // "12 (a name of any characters) S 1 ..."
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
