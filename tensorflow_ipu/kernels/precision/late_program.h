// XLA programs that are compiled when they are first needed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "xla/client/local_client.h"
#include "xla/service/shaped_buffer.h"

namespace tensorflow_ipu::precision {

// Returns XLA's client for the host. The first call in a process sets the number of threads that an operation may use;
// -1 means all.
//
// XLA's default client may not be the host's if several platforms are registered, as with TensorFlow 2.20.
xla::LocalClient* HostClient(int threads = -1);

struct HostArray {
  const void* data;
  int64_t elements;
  bool half;  // True if the elements are float16, else they are float32.
};

// A program whose result is a tuple of arrays. Thread-safe.
class LateProgram {
 public:
  struct Results {
    xla::ScopedShapedBuffer memory;
    std::vector<HostArray> arrays;  // They refer to `memory`.
  };

  // `serialized` is an `HloModuleProto`, compressed by Snappy, in the Base64 alphabet for the web.
  explicit LateProgram(std::string_view serialized) : serialized_(serialized) {}

  // Compiles the program at the first call, and runs it on arrays with the shapes of its parameters.
  absl::StatusOr<Results> Run(absl::Span<void* const> arguments);

 private:
  absl::Status Compile() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::string serialized_ ABSL_GUARDED_BY(mutex_);  // Empty once the program is compiled.
  std::vector<xla::Shape> parameters_;
  std::unique_ptr<xla::LocalExecutable> executable_;
};

}  // namespace tensorflow_ipu::precision
