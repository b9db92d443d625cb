#include "tensorflow_ipu/kernels/host/python_end.h"

#include "tensorflow_ipu/kernels/support/mutex.h"

namespace tensorflow_ipu {

namespace {

struct Python {
  core::Mutex mutex;
  core::Condition unused;
  bool ended IPU_GUARDED_BY(mutex) = false;
  int uses IPU_GUARDED_BY(mutex) = 0;
};

Python& ThePython() { return core::NeverDestroyed<Python>(); }

}  // namespace

void EndPython() {
  Python& python = ThePython();
  core::Lock lock(python.mutex);
  python.ended = true;
  python.unused.Wait(lock, [&python]() IPU_REQUIRES(python.mutex) { return python.uses == 0; });
}

bool PythonHasEnded() {
  Python& python = ThePython();
  const core::Lock lock(python.mutex);
  return python.ended;
}

// Calls without the mutex, since `call` takes Python's lock.
bool BeforePythonEnds(const std::function<void()>& call) {
  Python& python = ThePython();
  {
    const core::Lock lock(python.mutex);
    if (python.ended) return false;
    ++python.uses;
  }
  call();
  const core::Lock lock(python.mutex);
  if (--python.uses == 0) python.unused.NotifyAll();
  return true;
}

}  // namespace tensorflow_ipu
