#include "tensorflow_ipu/kernels/core/threads.h"

#include <pthread.h>

#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace tensorflow_ipu::core {

Outcome StartThread(const char* name, std::function<void()> work) {
  try {
    std::thread([name, work = std::move(work)]() mutable {
      pthread_setname_np(pthread_self(), name);  // Else it bears the name of the thread that started it.
      work();
      work = nullptr;
    }).detach();
  } catch (const std::system_error& error) {
    return {Code::kResourceExhausted,
            std::string("The system gives this process no further thread (`") + name + "`: " + error.what() +
                "). Raise the limit (`ulimit -u`, the container's `pids` limit, or memory where that is limited), or "
                "use fewer replicas, queues and threads at once."};
  }
  return Outcome::Ok();
}

}  // namespace tensorflow_ipu::core
