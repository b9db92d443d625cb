#include "tensorflow_ipu/kernels/support/file_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

namespace tensorflow_ipu::core {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "IPUEXE02";
constexpr std::size_t kHeader = kMagic.size() + sizeof(uint64_t);
// XLA serializes executables as protocol buffers, which are smaller. A sparse file may claim a larger size.
constexpr int64_t kMostBytes = int64_t{2} << 30;

// The names of files: 32 digits and a suffix. While a file is being written, `mkostemps` inserts six characters.
constexpr std::size_t kDigits = 32;
constexpr std::string_view kSuffix = ".ipu_executable";
constexpr std::string_view kUnique = ".XXXXXX";
constexpr std::string_view kUnfinished = ".ipu_unfinished";
// The age at which an unfinished file is assumed to be left by a process that was killed.
constexpr std::time_t kAbandonedSeconds = 3600;

// FNV-1a on eight bytes at a time. A shift makes high bits change low ones too.
uint64_t Checksum(uint64_t sum, std::string_view bytes) {
  for (std::size_t offset = 0; offset < bytes.size(); offset += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + offset, std::min(sizeof word, bytes.size() - offset));
    sum = (sum ^ word) * 1099511628211ULL;
    sum ^= sum >> 32;
  }
  return (sum ^ bytes.size()) * 1099511628211ULL;
}

uint64_t Checksum(std::string_view identity, std::string_view contents) {
  return Checksum(Checksum(14695981039346656037ULL, identity), contents);
}

bool IsName(std::string_view file, std::string_view suffix, std::size_t size) {
  return file.size() == size && file.substr(size - suffix.size()) == suffix &&
         file.find_first_not_of("0123456789abcdef") == kDigits;
}

bool IsFinished(std::string_view file) { return IsName(file, kSuffix, kDigits + kSuffix.size()); }

bool IsUnfinished(std::string_view file) {
  return IsName(file, kUnfinished, kDigits + kUnique.size() + kUnfinished.size()) && file[kDigits] == '.';
}

std::optional<std::string> ReadAll(int file, std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t offset = 0; offset < size;) {
    const ssize_t count = read(file, text.data() + offset, size - offset);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return std::nullopt;
    offset += static_cast<std::size_t>(count);
  }
  return text;
}

bool WriteAll(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(file, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

}  // namespace

std::string Packed(std::string_view identity, std::string_view contents) {
  const uint64_t sum = Checksum(identity, contents);
  std::string packed;
  packed.reserve(kHeader + contents.size());
  packed.append(kMagic).append(reinterpret_cast<const char*>(&sum), sizeof sum).append(contents);
  return packed;
}

std::optional<std::string> Unpacked(std::string_view identity, std::string packed) {
  if (packed.size() < kHeader || packed.compare(0, kMagic.size(), kMagic) != 0) return std::nullopt;
  uint64_t sum = 0;
  std::memcpy(&sum, packed.data() + kMagic.size(), sizeof sum);
  packed.erase(0, kHeader);
  if (Checksum(identity, packed) != sum) return std::nullopt;
  return packed;
}

FileCache::FileCache(std::string folder, int64_t max_bytes, bool trusting)
    : folder_(std::move(folder)), max_bytes_(max_bytes), trusting_(trusting) {}

std::string FileCache::PathOf(const std::string& file) const { return (fs::path(folder_) / file).string(); }

bool FileCache::IsTrusted(const struct stat& about) const {
  return S_ISREG(about.st_mode) && (trusting_ || about.st_uid == geteuid() || about.st_uid == 0);
}

// Uses only system calls. A stream throws if a file can be opened but not read, and an exception in TensorFlow's frames
// ends the process.
std::optional<std::string> FileCache::Read(const std::string& name, std::string_view identity) const {
  const std::string path = PathOf(name + std::string(kSuffix));
  // The flags prevent following a link and waiting at a FIFO.
  const int file = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  std::optional<std::string> contents;
  struct stat about = {};
  if (fstat(file, &about) == 0 && IsTrusted(about) && (trusting_ || (about.st_mode & (S_IWGRP | S_IWOTH)) == 0) &&
      about.st_size <= kMostBytes) {
    std::optional<std::string> packed = ReadAll(file, static_cast<std::size_t>(about.st_size));
    if (packed) contents = Unpacked(identity, *std::move(packed));
    // Fails in a folder that cannot be written, from which no file is removed anyway.
    if (contents) futimens(file, nullptr);
  }
  close(file);
  return contents;
}

bool FileCache::Write(const std::string& name, std::string_view identity, std::string_view contents) const {
  std::error_code error;
  fs::create_directories(folder_, error);
  struct stat folder = {};
  if (error || stat(folder_.c_str(), &folder) != 0) return false;
  // The name cannot be predicted, and an existing file or link is not opened.
  std::string unfinished = PathOf(name + std::string(kUnique) + std::string(kUnfinished));
  const int file = mkostemps(unfinished.data(), static_cast<int>(kUnfinished.size()), O_CLOEXEC);
  if (file < 0) return false;
  bool whole = WriteAll(file, Packed(identity, contents));
  // Users who may list the folder may read the file. In a folder that others may write, they may not, because this
  // process does not load their files either.
  if (trusting_ || (folder.st_mode & (S_IWGRP | S_IWOTH)) == 0) {
    fchmod(file, S_IRUSR | S_IWUSR | (folder.st_mode & (S_IRGRP | S_IROTH)));
  }
  whole = close(file) == 0 && whole;  // A network file system may report only now that it is full.
  const std::string finished = name + std::string(kSuffix);
  if (whole && rename(unfinished.c_str(), PathOf(finished).c_str()) == 0) {
    Trim(finished);
    return true;
  }
  unlink(unfinished.c_str());
  return false;
}

void FileCache::Trim(const std::string& newest) const {
  struct File {
    std::pair<std::time_t, long> used;  // Seconds and nanoseconds.
    int64_t bytes;
    std::string path;
  };
  std::vector<File> files;
  int64_t bytes = 0;
  const std::time_t now = std::time(nullptr);
  std::error_code error;
  for (fs::directory_iterator entry(folder_, error), end; !error && entry != end; entry.increment(error)) {
    const std::string path = entry->path().string();
    const std::string name = entry->path().filename().string();
    struct stat about = {};
    if (!IsFinished(name) && !IsUnfinished(name)) continue;
    if (lstat(path.c_str(), &about) != 0 || !IsTrusted(about)) continue;
    if (IsUnfinished(name)) {
      if (now - about.st_mtim.tv_sec > kAbandonedSeconds) unlink(path.c_str());
      continue;
    }
    bytes += about.st_size;
    if (name == newest) continue;
    files.push_back({{about.st_mtim.tv_sec, about.st_mtim.tv_nsec}, about.st_size, path});
  }
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) { return a.used < b.used; });
  for (const File& file : files) {
    if (bytes <= max_bytes_) return;
    unlink(file.path.c_str());
    bytes -= file.bytes;
  }
}

}  // namespace tensorflow_ipu::core
