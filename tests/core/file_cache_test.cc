// Tests that cached files are read as they were written, or count as missing, and that only the least recently used
// ones are removed.
#include "tensorflow_ipu/kernels/support/file_cache.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "gtest/gtest.h"
#include "tests/core/threads.h"

namespace {

namespace fs = std::filesystem;

using tensorflow_ipu::core::FileCache;
using tensorflow_ipu::core::Packed;
using tensorflow_ipu::core::Unpacked;

constexpr int64_t kMany = 1 << 20;

// Returns a name in the cache's format.
std::string Name(char digit) { return std::string(32, digit); }

// A path in a new folder. The path does not exist yet, and the folder is removed with this object.
struct Folder {
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "file_cache_XXXXXX").string();
    path = mkdtemp(pattern.data());
  }
  ~Folder() { fs::remove_all(path); }

  std::string below() const { return (path / "a" / "b").string(); }
  fs::path file(char digit) const { return fs::path(below()) / (Name(digit) + ".ipu_executable"); }

  fs::path path;
};

int64_t FilesIn(const std::string& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

void Age(const fs::path& path, int minutes) {
  fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::minutes(minutes));
}

TEST(FileCache, written_contents_are_read) {
  const Folder folder;
  const FileCache cache(folder.below(), kMany);
  EXPECT_FALSE(cache.Read(Name('1'), "key"));
  EXPECT_TRUE(cache.Write(Name('1'), "key", "first"));
  EXPECT_TRUE(cache.Write(Name('1'), "key", std::string("se\0cond", 7)));
  EXPECT_TRUE(cache.Write(Name('e'), "key", ""));
  EXPECT_EQ(FileCache(folder.below(), kMany).Read(Name('1'), "key"), std::string("se\0cond", 7));
  EXPECT_EQ(cache.Read(Name('e'), "key"), "");
  EXPECT_EQ(FilesIn(folder.below()), 2);
}

TEST(FileCache, a_damaged_file_counts_as_missing) {
  const Folder folder;
  const FileCache cache(folder.below(), kMany);
  const fs::path path = folder.file('1');
  for (const std::string how : {"cut", "changed", "top bits", "emptied", "foreign", "claims to be huge"}) {
    EXPECT_TRUE(cache.Write(Name('1'), "key", std::string(1000, 'x')));
    std::fstream file(path, std::ios::in | std::ios::out);
    if (how == "cut") fs::resize_file(path, 500);
    if (how == "changed") file.seekp(700).put('y');
    if (how == "top bits") file.seekp(23).put('x' ^ '\x80').seekp(31).put('x' ^ '\x80');
    if (how == "emptied") fs::resize_file(path, 0);
    if (how == "foreign") std::ofstream(path) << "what somebody else has put into the folder";
    if (how == "claims to be huge") fs::resize_file(path, uint64_t{1} << 40);
    file.close();
    EXPECT_FALSE(cache.Read(Name('1'), "key"));
  }
}

// A regression: the checksum covered only the contents, so a file that was copied under another name gave another
// program's results.
TEST(FileCache, a_file_under_the_name_of_another_program_counts_as_missing_and_is_replaced) {
  const Folder folder;
  const FileCache cache(folder.below(), kMany);
  EXPECT_TRUE(cache.Write(Name('1'), "key|one", "first"));
  fs::copy_file(folder.file('1'), folder.file('2'));
  EXPECT_FALSE(cache.Read(Name('2'), "key|two"));
  EXPECT_TRUE(cache.Write(Name('2'), "key|two", "second"));
  EXPECT_EQ(cache.Read(Name('2'), "key|two"), "second");
  EXPECT_EQ(Unpacked("ab", Packed("ab", "c")), "c");
  EXPECT_FALSE(Unpacked("a", Packed("ab", "c")));
  EXPECT_FALSE(Unpacked("", ""));
}

// A regression: a folder under a file's name ended the process by an exception, a link was followed, and a pipe was
// waited for.
TEST(FileCache, a_path_that_is_no_regular_file_counts_as_missing_without_a_wait) {
  const Folder folder;
  const FileCache cache(folder.below(), kMany);
  EXPECT_TRUE(cache.Write(Name('1'), "key", "first"));
  fs::create_directory(folder.file('2'));
  fs::create_symlink(folder.file('1'), folder.file('3'));
  EXPECT_EQ(mkfifo(folder.file('4').c_str(), 0600), 0);
  for (const char digit : {'2', '3', '4'}) EXPECT_FALSE(cache.Read(Name(digit), "key"));
  EXPECT_FALSE(cache.Write(Name('2'), "key", "second"));
  for (const char digit : {'3', '4'}) {
    EXPECT_TRUE(cache.Write(Name(digit), "key", "second"));
    EXPECT_EQ(cache.Read(Name(digit), "key"), "second");
  }
  EXPECT_EQ(cache.Read(Name('1'), "key"), "first");
  EXPECT_EQ(FilesIn(folder.below()), 4);
}

TEST(FileCache, a_file_that_others_may_write_counts_as_missing_unless_they_are_trusted) {
  const Folder folder;
  const FileCache cache(folder.below(), kMany);
  const FileCache trusting(folder.below(), kMany, /*trusting=*/true);
  EXPECT_TRUE(cache.Write(Name('1'), "key", "first"));
  EXPECT_TRUE(cache.Write(Name('2'), "key", "second"));
  fs::permissions(folder.file('1'), fs::perms::group_write, fs::perm_options::add);
  EXPECT_FALSE(cache.Read(Name('1'), "key"));
  EXPECT_EQ(trusting.Read(Name('1'), "key"), "first");
  if (geteuid() != 0) return;  // Only root may change the owner of a file.
  EXPECT_EQ(chown(folder.file('2').c_str(), 12345, 12345), 0);
  EXPECT_FALSE(cache.Read(Name('2'), "key"));
  EXPECT_EQ(trusting.Read(Name('2'), "key"), "second");
}

TEST(FileCache, users_who_may_read_the_folder_may_read_files_but_not_write_them) {
  const Folder folder;
  const auto permissions_in = [&](fs::perms of_folder, bool trusting) {
    fs::create_directories(folder.below());
    fs::permissions(folder.below(), of_folder);
    EXPECT_TRUE(FileCache(folder.below(), kMany, trusting).Write(Name('1'), "key", "first"));
    return static_cast<int>(fs::status(folder.file('1')).permissions());
  };
  const fs::perms group = fs::perms::owner_all | fs::perms::group_all;
  EXPECT_EQ(permissions_in(fs::perms::owner_all, false), 0600);
  EXPECT_EQ(permissions_in(fs::perms::owner_all | fs::perms::group_read | fs::perms::others_read, false), 0644);
  EXPECT_EQ(permissions_in(group, false), 0600);  // The group cannot use the file, because it would not load it.
  EXPECT_EQ(permissions_in(group, true), 0640);
}

TEST(FileCache, the_least_recently_used_files_are_removed) {
  const Folder folder;
  const FileCache cache(folder.below(), 3500);
  const std::string contents(1000, 'x');
  for (const char digit : {'a', 'b', 'c'}) EXPECT_TRUE(cache.Write(Name(digit), "key", contents));
  Age(folder.file('a'), 30);
  Age(folder.file('b'), 20);
  Age(folder.file('c'), 10);
  EXPECT_TRUE(cache.Read(Name('a'), "key").has_value());  // So it is the latest again.
  EXPECT_TRUE(cache.Write(Name('d'), "key", contents));
  EXPECT_FALSE(cache.Read(Name('b'), "key"));
  for (const char digit : {'a', 'c', 'd'}) EXPECT_TRUE(cache.Read(Name(digit), "key").has_value());
  EXPECT_TRUE(cache.Write(Name('e'), "key", std::string(5000, 'x')));  // The newest file is kept, whatever its size.
  EXPECT_TRUE(cache.Read(Name('e'), "key").has_value());
  EXPECT_EQ(FilesIn(folder.below()), 1);
}

// A regression: all old `*.tmp` files were removed, even those of other programs, and empty folders too.
TEST(FileCache, only_files_of_the_cache_are_removed) {
  const Folder folder;
  const FileCache cache(folder.below(), 1);
  EXPECT_TRUE(cache.Write(Name('a'), "key", "a"));
  const std::string left = Name('b') + ".abc123.ipu_unfinished";
  const std::string fresh = Name('c') + ".abc123.ipu_unfinished";
  const std::string theirs[] = {"thesis.tmp", "thesis.ipu_executable", "thesis.ipu_unfinished", Name('d') + ".tmp",
                                Name('a') + ".old.ipu_executable"};
  for (const std::string& name : {left, fresh}) std::ofstream(fs::path(folder.below()) / name) << "half";
  for (const std::string& name : theirs) std::ofstream(fs::path(folder.below()) / name) << "my work";
  fs::create_directory(fs::path(folder.below()) / (Name('e') + ".abc123.ipu_unfinished"));
  fs::create_directory(folder.file('f'));
  for (const auto& entry : fs::directory_iterator(folder.below())) {
    if (entry.path().filename() != fresh) Age(entry.path(), 120);
  }
  EXPECT_TRUE(cache.Write(Name('0'), "key", "b"));  // Removes the first file, because of its size.
  EXPECT_FALSE(fs::exists(folder.file('a')));
  EXPECT_FALSE(fs::exists(fs::path(folder.below()) / left));
  EXPECT_TRUE(fs::exists(fs::path(folder.below()) / fresh));
  for (const std::string& name : theirs) EXPECT_TRUE(fs::exists(fs::path(folder.below()) / name));
  EXPECT_EQ(FilesIn(folder.below()), 9);
}

TEST(FileCache, a_folder_that_cannot_be_written_is_no_error) {
  const Folder folder;
  std::ofstream(folder.path / "file") << "no folder";
  const FileCache cache((folder.path / "file").string(), kMany);
  EXPECT_FALSE(cache.Write(Name('1'), "key", "first"));
  EXPECT_FALSE(cache.Read(Name('1'), "key"));
}

// The limit of a file's size simulates a disk that becomes full in the middle of a file.
TEST(FileCache, a_full_disk_keeps_the_last_file_and_leaves_no_incomplete_one) {
  const Folder folder;
  const FileCache cache(folder.below(), kMany);
  EXPECT_TRUE(cache.Write(Name('1'), "key", "first"));
  struct rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit full = {1000, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &full);
  const bool written = cache.Write(Name('1'), "key", std::string(5000, 'x'));
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_FALSE(written);
  EXPECT_EQ(cache.Read(Name('1'), "key"), "first");
  EXPECT_EQ(FilesIn(folder.below()), 1);
}

TEST(FileCache, threads_read_complete_files) {
  const Folder folder;
  const FileCache cache(folder.below(), 200000);
  check::OnThreads(4, [&](int thread) {
    for (int i = 0; i < 50; ++i) {
      const std::string name = Name(static_cast<char>('0' + i % 5));
      if (const auto found = cache.Read(name, "key")) EXPECT_EQ(*found, std::string(10000, (*found)[0]));
      EXPECT_TRUE(cache.Write(name, "key", std::string(10000, static_cast<char>('a' + thread))));
    }
  });
  EXPECT_EQ(FilesIn(folder.below()), 5);
}

}  // namespace
