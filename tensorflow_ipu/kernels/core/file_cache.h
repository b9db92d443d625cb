// A folder of files that processes share: what one has written, others read.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_FILE_CACHE_H_
#define TENSORFLOW_IPU_KERNELS_CORE_FILE_CACHE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tensorflow_ipu::core {

// Thread-safe, for any number of processes at once: a file appears whole or not at all, and one that was damaged is as
// one that is not there. What is used least recently goes, so that all files together, and the traces that Python keeps
// in the same folder, take no more than `max_bytes`.
class FileCache {
 public:
  // The folder is made when the first file is written.
  FileCache(std::string folder, int64_t max_bytes);

  // What was written under a name, and notes the use.
  std::optional<std::string> Read(const std::string& name) const;

  // Whether the file was written: a full disk, or a folder that nobody may write to, is no error to a cache.
  bool Write(const std::string& name, std::string_view contents) const;

  const std::string& folder() const { return folder_; }

 private:
  std::string PathOf(const std::string& name) const;
  void Trim(const std::string& newest) const;

  const std::string folder_;
  const int64_t max_bytes_;
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_FILE_CACHE_H_
