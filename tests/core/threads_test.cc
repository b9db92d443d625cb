// What threads.h promises: a thread, or the words why there is none.
#include "tensorflow_ipu/kernels/core/threads.h"

#include <pthread.h>

#include <memory>
#include <string>

#include "tests/core/check.h"
#include "tests/core/threads.h"

namespace {

using tensorflow_ipu::core::Code;
using tensorflow_ipu::core::Outcome;
using tensorflow_ipu::core::StartThread;
using tensorflow_ipu::core::TryThreads;

TEST(a_thread_bears_its_name_and_lets_its_work_go) {
  check::Count gone;
  std::string name;
  const auto held = [&gone](int* number) {
    delete number;
    gone.Add();
  };
  const Outcome started = StartThread("ipu-test", [&name, number = std::shared_ptr<int>(new int(0), held)] {
    char found[16];
    pthread_getname_np(pthread_self(), found, sizeof(found));
    name = found;
  });
  CHECK(started.ok());
  CHECK(gone.Await());
  CHECK_EQ(name, "ipu-test");
}

TEST(where_the_system_gives_no_thread_the_outcome_says_so_and_what_to_do) {
  Outcome started;
  {
    const check::NoThreads none;
    started = StartThread("ipu-test", [] { CHECK(false); });
  }
  CHECK(started.code == Code::kResourceExhausted);
  for (const char* const word : {"no further thread", "`ipu-test`", "ulimit -u"}) {
    CHECK(started.message.find(word) != std::string::npos);
  }
  CHECK(StartThread("ipu-test", [] {}).ok());
}

TEST(a_try_says_whether_there_are_threads) {
  CHECK(TryThreads("ipu-try", 0).ok());
  CHECK(TryThreads("ipu-try", 5).ok());
  const check::NoThreads none;
  const Outcome tried = TryThreads("ipu-try", 5);
  CHECK(tried.code == Code::kResourceExhausted);
  CHECK(tried.message.find("`ipu-try`") != std::string::npos);
}

}  // namespace
