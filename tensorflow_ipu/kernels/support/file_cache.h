// A cache of files in a folder that several processes share.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tensorflow_ipu::core {

// Returns `contents` with a checksum of `contents` and `identity`. The identity describes everything that the contents
// depend on.
std::string Packed(std::string_view identity, std::string_view contents);

// Returns the contents, or nothing if they are damaged or were packed for another identity.
std::optional<std::string> Unpacked(std::string_view identity, std::string packed);

// A cache whose files appear complete or not at all. A file counts as missing if it is damaged, was stored for another
// identity, is not a regular file or cannot be read. The same holds for a file that a user other than root owns or may
// write, unless `trusting` is set. When the files exceed `max_bytes`, the least recently used ones are removed. Only
// files with names of the cache are removed. Safe for threads and processes.
class FileCache {
 public:
  FileCache(std::string folder, int64_t max_bytes, bool trusting = false);

  // Returns the contents that were stored under a name, and marks them as used. A name has 32 hexadecimal digits.
  std::optional<std::string> Read(const std::string& name, std::string_view identity) const;

  // Returns false if the file cannot be written. That is no error for a cache.
  bool Write(const std::string& name, std::string_view identity, std::string_view contents) const;

 private:
  std::string PathOf(const std::string& file) const;
  bool IsTrusted(const struct stat& about) const;
  void Trim(const std::string& newest) const;

  const std::string folder_;
  const int64_t max_bytes_;
  const bool trusting_;
};

}  // namespace tensorflow_ipu::core
