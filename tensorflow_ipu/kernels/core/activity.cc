#include "tensorflow_ipu/kernels/core/activity.h"

#include <dirent.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace tensorflow_ipu::core {

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
