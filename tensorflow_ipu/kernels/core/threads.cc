#include "tensorflow_ipu/kernels/core/threads.h"

#include <pthread.h>

#include <future>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace tensorflow_ipu::core {

namespace {

Outcome NoThread(const char* name, const std::system_error& error) {
  return {Code::kResourceExhausted,
          std::string("The system gives this process no further thread (`") + name + "`: " + error.what() +
              "). Raise the limit (`ulimit -u`, the container's `pids` limit, or memory where that is limited), or "
              "use fewer replicas, queues and threads at once."};
}

}  // namespace

Outcome StartThread(const char* name, std::function<void()> work) {
  try {
    std::thread([name, work = std::move(work)]() mutable {
      pthread_setname_np(pthread_self(), name);  // Else it has the name of the thread that started it.
      work();
      work = nullptr;
    }).detach();
  } catch (const std::system_error& error) {
    return NoThread(name, error);
  }
  return Outcome::Ok();
}

Outcome TryThreads(const char* name, int count) {
  Outcome outcome;
  std::promise<void> all;
  const std::shared_future<void> begun = all.get_future().share();
  std::vector<std::thread> threads;
  threads.reserve(count);
  try {
    for (int i = 0; i < count; ++i) {
      threads.emplace_back([name, begun] {
        pthread_setname_np(pthread_self(), name);
        begun.wait();
      });
    }
  } catch (const std::system_error& error) {
    outcome = NoThread(name, error);
  }
  all.set_value();
  for (std::thread& thread : threads) thread.join();  // Until then the system counts them.
  return outcome;
}

}  // namespace tensorflow_ipu::core
