#include "tensorflow_ipu/kernels/host/lines.h"

#include <map>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow_ipu/kernels/support/never_destroyed.h"

namespace tensorflow_ipu {

namespace {

using Key = std::pair<std::string, std::string>;

struct Lines {
  absl::Mutex mutex;
  std::map<Key, std::set<std::string>> by_node ABSL_GUARDED_BY(mutex);
};

Lines& All() { return core::NeverDestroyed<Lines>(); }

}  // namespace

void NoteLine(std::string_view node, std::string_view name, const std::string& line) {
  Lines& all = All();
  const absl::MutexLock lock(&all.mutex);
  all.by_node[Key(node, name)].insert(line);
}

std::string LinesOf(std::string_view node, std::string_view name) {
  Lines& all = All();
  const absl::MutexLock lock(&all.mutex);
  const auto found = all.by_node.find(Key(node, name));
  return found == all.by_node.end() ? "" : absl::StrCat(" (", absl::StrJoin(found->second, " or "), ")");
}

}  // namespace tensorflow_ipu
