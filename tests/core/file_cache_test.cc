// Cached files come back as they were written, or not at all; the least recently used ones go.
#include "tensorflow_ipu/kernels/core/file_cache.h"

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/core/check.h"
#include "tests/core/threads.h"

namespace {

namespace fs = std::filesystem;

using tensorflow_ipu::core::FileCache;

constexpr int64_t kMany = 1 << 20;

// A folder that does not exist yet, and is removed with the test.
struct Folder {
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "file_cache_XXXXXX").string();
    path = mkdtemp(pattern.data());
  }
  ~Folder() { fs::remove_all(path); }

  std::string below() const { return (path / "a" / "b").string(); }

  fs::path path;
};

int64_t FilesIn(const std::string& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

TEST(what_was_written_is_read) {
  const Folder folder;
  const FileCache cache(folder.below(), kMany);
  CHECK(!cache.Read("one"));
  CHECK(cache.Write("one", "first"));
  CHECK(cache.Write("one", std::string("se\0cond", 7)));
  CHECK(cache.Write("empty", ""));
  CHECK(FileCache(folder.below(), kMany).Read("one") == std::string("se\0cond", 7));
  CHECK(cache.Read("empty") == "");
  CHECK_EQ(FilesIn(folder.below()), 2);
}

TEST(a_damaged_file_is_as_none) {
  const Folder folder;
  const FileCache cache(folder.below(), kMany);
  for (const char* const how : {"cut", "changed", "emptied", "foreign"}) {
    CHECK(cache.Write("one", std::string(1000, 'x')));
    const fs::path path = fs::directory_iterator(folder.below())->path();
    if (*how == 'c' && how[1] == 'u') fs::resize_file(path, 500);
    if (*how == 'c' && how[1] == 'h') std::fstream(path, std::ios::in | std::ios::out).seekp(700).put('y');
    if (*how == 'e') fs::resize_file(path, 0);
    if (*how == 'f') std::ofstream(path) << "what somebody else has put into the folder";
    CHECK(!cache.Read("one"));
  }
}

TEST(the_least_recently_used_make_room) {
  const Folder folder;
  const FileCache cache(folder.below(), 3500);
  const std::string contents(1000, 'x');
  const auto age = [&](const std::string& name, int minutes) {
    for (const auto& entry : fs::directory_iterator(folder.below())) {
      if (entry.path().filename().string().rfind(name, 0) != 0) continue;
      fs::last_write_time(entry.path(), fs::file_time_type::clock::now() - std::chrono::minutes(minutes));
    }
  };
  for (const char* const name : {"a", "b", "c"}) CHECK(cache.Write(name, contents));
  age("a", 30);
  age("b", 20);
  age("c", 10);
  CHECK(cache.Read("a").has_value());  // So it is the latest again.
  CHECK(cache.Write("d", contents));
  CHECK(!cache.Read("b"));
  CHECK(cache.Read("a").has_value() && cache.Read("c").has_value() && cache.Read("d").has_value());
  CHECK(cache.Write("huge", std::string(5000, 'x')));  // The newest stays, whatever its size.
  CHECK(cache.Read("huge").has_value());
  CHECK_EQ(FilesIn(folder.below()), 1);
}

TEST(what_a_process_left_half_written_goes_in_time) {
  const Folder folder;
  const FileCache cache(folder.below(), kMany);
  CHECK(cache.Write("a", "a"));
  const fs::path old = fs::path(folder.below()) / "x.1.1.tmp";
  const fs::path fresh = fs::path(folder.below()) / "y.1.1.tmp";
  std::ofstream(old) << "half";
  std::ofstream(fresh) << "half";
  fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::hours(2));
  CHECK(cache.Write("b", "b"));
  CHECK(!fs::exists(old));
  CHECK(fs::exists(fresh));
}

TEST(a_folder_that_cannot_be_written_is_no_error) {
  const Folder folder;
  std::ofstream(folder.path / "file") << "no folder";
  const FileCache cache((folder.path / "file").string(), kMany);
  CHECK(!cache.Write("one", "first"));
  CHECK(!cache.Read("one"));
}

TEST(threads_see_whole_files) {
  const Folder folder;
  const FileCache cache(folder.below(), 200000);
  check::OnThreads(4, [&](int thread) {
    for (int i = 0; i < 50; ++i) {
      const std::string name = std::to_string(i % 5);
      if (const auto found = cache.Read(name)) CHECK(*found == std::string(10000, (*found)[0]));
      CHECK(cache.Write(name, std::string(10000, static_cast<char>('a' + thread))));
    }
  });
  CHECK_EQ(FilesIn(folder.below()), 5);
}

}  // namespace
