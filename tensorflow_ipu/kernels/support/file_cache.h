// A folder of files that processes share.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tensorflow_ipu::core {

// Adds a checksum of the contents and of `identity`, which is all that they depend on.
std::string Packed(std::string_view identity, std::string_view contents);

// Returns the contents, or nothing if they are damaged or were packed for another identity.
std::optional<std::string> Unpacked(std::string_view identity, std::string packed);

// A file appears whole or not at all. What is damaged, was stored for another identity, is no regular file or cannot be
// read counts as missing. So does a file that another user than root owns or may write to, unless `trusting` is set.
// Once the files exceed `max_bytes`, the least recently used ones are removed, and no file under a name that is not the
// cache's. Safe for threads and processes.
class FileCache {
 public:
  FileCache(std::string folder, int64_t max_bytes, bool trusting = false);

  // Returns what was stored under a name, and marks it as used. The name has 32 hexadecimal digits.
  std::optional<std::string> Read(const std::string& name, std::string_view identity) const;

  // Returns false if the file cannot be written, which is no error for a cache.
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
