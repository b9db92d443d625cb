#include "tensorflow_ipu/kernels/host/lines.h"

#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tensorflow_ipu {

namespace {

using Key = std::pair<std::string, std::string>;

struct Lines {
  std::mutex mutex;
  std::map<Key, std::set<std::string>> of;
};

Lines& All() {
  static auto* const all = new Lines();
  return *all;
}

}  // namespace

void NoteLine(std::string_view node, std::string_view name, const std::string& line) {
  Lines& all = All();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.of[Key(node, name)].insert(line);
}

std::string LinesOf(std::string_view node, std::string_view name) {
  Lines& all = All();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.of.find(Key(node, name));
  return found == all.of.end() ? "" : absl::StrCat(" (", absl::StrJoin(found->second, " or "), ")");
}

}  // namespace tensorflow_ipu
