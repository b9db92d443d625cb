// A folder of files that processes share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tensorflow_ipu::core {

// A file appears whole or not at all, and a damaged one counts as missing. The least recently used files go once all
// files, with the traces that Python keeps in the same folder, take more than `max_bytes`. Safe for threads and
// processes.
class FileCache {
 public:
  FileCache(std::string folder, int64_t max_bytes);

  // Also marks the file as used.
  std::optional<std::string> Read(const std::string& name) const;

  // False where the file cannot be written, which is no error for a cache.
  bool Write(const std::string& name, std::string_view contents) const;

 private:
  std::string PathOf(const std::string& name) const;
  void Trim(const std::string& newest) const;

  const std::string folder_;
  const int64_t max_bytes_;
};

}  // namespace tensorflow_ipu::core
