#include "tensorflow_ipu/kernels/core/file_cache.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

namespace tensorflow_ipu::core {
namespace {

namespace fs = std::filesystem;

constexpr char kSuffix[] = ".ipu_executable";
constexpr char kTraces[] = ".ipu_trace";
constexpr char kUnfinished[] = ".tmp";
constexpr std::string_view kMagic = "IPUEXE01";
// Unfinished files that a process left.
constexpr std::chrono::hours kAbandoned{1};

// FNV-1a, eight bytes at a time.
uint64_t Checksum(std::string_view bytes) {
  uint64_t sum = 14695981039346656037ULL;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof word, bytes.size() - at));
    sum = (sum ^ word) * 1099511628211ULL;
  }
  return sum ^ bytes.size();
}

}  // namespace

FileCache::FileCache(std::string folder, int64_t max_bytes) : folder_(std::move(folder)), max_bytes_(max_bytes) {}

std::string FileCache::PathOf(const std::string& name) const { return (fs::path(folder_) / (name + kSuffix)).string(); }

std::optional<std::string> FileCache::Read(const std::string& name) const {
  const std::string path = PathOf(name);
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  constexpr std::size_t kHeader = kMagic.size() + sizeof(uint64_t);
  if (text.size() < kHeader || text.compare(0, kMagic.size(), kMagic) != 0) return std::nullopt;
  uint64_t sum = 0;
  std::memcpy(&sum, text.data() + kMagic.size(), sizeof sum);
  text.erase(0, kHeader);
  if (Checksum(text) != sum) return std::nullopt;
  std::error_code ignored;  // The folder may be read-only.
  fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);
  return text;
}

bool FileCache::Write(const std::string& name, std::string_view contents) const {
  static std::atomic<int64_t> written{0};
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) return false;
  const std::string path = PathOf(name);
  const std::string unfinished = path + '.' + std::to_string(getpid()) + '.' + std::to_string(++written) + kUnfinished;
  const uint64_t sum = Checksum(contents);
  std::ofstream file(unfinished, std::ios::binary);
  file.write(kMagic.data(), static_cast<std::streamsize>(kMagic.size()));
  file.write(reinterpret_cast<const char*>(&sum), sizeof sum);
  file.write(contents.data(), static_cast<std::streamsize>(contents.size()));
  file.close();
  if (file.good()) {
    fs::rename(unfinished, path, error);
    if (!error) {
      Trim(path);
      return true;
    }
  }
  fs::remove(unfinished, error);
  return false;
}

void FileCache::Trim(const std::string& newest) const {
  struct File {
    fs::file_time_type used;
    int64_t bytes;
    fs::path path;
  };
  std::vector<File> files;
  int64_t bytes = 0;
  const fs::file_time_type now = fs::file_time_type::clock::now();
  std::error_code error;
  for (fs::directory_iterator entry(folder_, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code gone;
    const fs::file_time_type used = fs::last_write_time(entry->path(), gone);
    const std::string extension = entry->path().extension().string();
    if (!gone && extension == kUnfinished && now - used > kAbandoned) fs::remove(entry->path(), gone);
    if (gone || (extension != kSuffix && extension != kTraces)) continue;
    const auto size = static_cast<int64_t>(fs::file_size(entry->path(), gone));
    if (gone) continue;
    bytes += size;
    if (entry->path() != newest) files.push_back({used, size, entry->path()});
  }
  std::sort(files.begin(), files.end(), [](const File& one, const File& other) { return one.used < other.used; });
  for (const File& file : files) {
    if (bytes <= max_bytes_) return;
    fs::remove(file.path, error);
    bytes -= file.bytes;
  }
}

}  // namespace tensorflow_ipu::core
