#include "tensorflow_ipu/kernels/host/python_end.h"

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow_ipu/kernels/support/never_destroyed.h"

namespace tensorflow_ipu {

namespace {

struct Python {
  absl::Mutex mutex;
  bool ended ABSL_GUARDED_BY(mutex) = false;
  int uses ABSL_GUARDED_BY(mutex) = 0;
};

Python& ThePython() { return core::NeverDestroyed<Python>(); }

}  // namespace

void EndPython() {
  Python& python = ThePython();
  const absl::MutexLock lock(&python.mutex);
  python.ended = true;
  const auto unused = [&python]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(python.mutex) { return python.uses == 0; };
  python.mutex.Await(absl::Condition(&unused));
}

bool PythonHasEnded() {
  Python& python = ThePython();
  const absl::MutexLock lock(&python.mutex);
  return python.ended;
}

// The mutex is released during the call, since `call` acquires Python's lock.
bool BeforePythonEnds(const std::function<void()>& call) {
  Python& python = ThePython();
  {
    const absl::MutexLock lock(&python.mutex);
    if (python.ended) return false;
    ++python.uses;
  }
  call();
  const absl::MutexLock lock(&python.mutex);
  --python.uses;
  return true;
}

}  // namespace tensorflow_ipu
