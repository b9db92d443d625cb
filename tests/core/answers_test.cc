// What answers.h promises: every answer is given once, and on whose thread.
#include "tensorflow_ipu/kernels/core/answers.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tensorflow_ipu/kernels/core/waiting.h"
#include "tests/core/check.h"
#include "tests/core/threads.h"

namespace {

using check::Count;
using tensorflow_ipu::core::Answer;
using tensorflow_ipu::core::AnswerLater;
using tensorflow_ipu::core::Code;
using tensorflow_ipu::core::Deliver;
using tensorflow_ipu::core::Outcome;
using tensorflow_ipu::core::Pace;

constexpr int kPrograms = 8;

// Programs that note how often they were answered, and how many of them on this thread.
struct Programs {
  std::vector<Deliver> Delivers() {
    std::vector<Deliver> delivers = {nullptr};
    for (int i = 0; i < kPrograms; ++i) {
      delivers.push_back([this, i, asker = std::this_thread::get_id()](const Outcome& outcome) {
        ++answers[i];
        here += std::this_thread::get_id() == asker;
        last_code = outcome.code;
        done.Add();
      });
    }
    delivers.push_back(nullptr);
    return delivers;
  }

  void CheckOnce() {
    CHECK(done.Await(kPrograms));
    for (const std::atomic<int>& each : answers) CHECK_EQ(each.load(), 1);
  }

  std::vector<std::atomic<int>> answers = std::vector<std::atomic<int>>(kPrograms);
  std::atomic<int> here{0};
  std::atomic<Code> last_code{Code::kUnknown};
  Count done;
};

std::shared_ptr<Pace> PaceOf(int64_t nanoseconds) {
  auto pace = std::make_shared<Pace>();
  pace->Note(nanoseconds);
  return pace;
}

TEST(later_is_on_other_threads) {
  Programs programs;
  AnswerLater(programs.Delivers(), Outcome::OutOfRange("over"));
  programs.CheckOnce();
  CHECK_EQ(programs.here.load(), 0);
  CHECK(programs.last_code.load() == Code::kOutOfRange);
  AnswerLater({nullptr, nullptr}, Outcome::Ok());
}

TEST(programs_of_small_steps_go_on_where_they_are_answered) {
  Programs programs;
  Answer(programs.Delivers(), PaceOf(100));
  CHECK_EQ(programs.here.load(), kPrograms);
  programs.CheckOnce();
  CHECK(programs.last_code.load() == Code::kOk);
}

TEST(programs_of_large_steps_go_on_elsewhere) {
  Programs programs;
  Answer(programs.Delivers(), PaceOf(1000000000));
  programs.CheckOnce();
  CHECK_EQ(programs.here.load(), 0);
}

TEST(programs_of_which_nothing_is_known_go_on_elsewhere) {
  Programs programs;
  const auto pace = std::make_shared<Pace>();
  Answer(programs.Delivers(), pace);
  programs.CheckOnce();
  CHECK_EQ(programs.here.load(), 0);
}

TEST(answers_within_an_answer_go_elsewhere) {
  Programs programs;
  const auto pace = PaceOf(100);
  Answer({[&](const Outcome&) { Answer(programs.Delivers(), pace); }}, pace);
  programs.CheckOnce();
  CHECK_EQ(programs.here.load(), 0);
  Programs next;
  Answer(next.Delivers(), PaceOf(100));
  CHECK_EQ(next.here.load(), kPrograms);
}

TEST(the_pace_follows_shorter_times_at_once_and_longer_ones_slowly) {
  Pace pace;
  CHECK(pace.nanoseconds() > 1000000000);
  pace.Note(5000);
  CHECK_EQ(pace.nanoseconds(), 5000);
  pace.Note(1000000);
  CHECK(pace.nanoseconds() < 6000);
  for (int i = 0; i < 100; ++i) pace.Note(1000000);
  CHECK_EQ(pace.nanoseconds(), 1000000);
  pace.Note(0);
  CHECK_EQ(pace.nanoseconds(), 0);
}

TEST(the_pace_is_that_of_the_programs) {
  const auto pace = std::make_shared<Pace>();
  Count done;
  Answer({[&](const Outcome&) {
           tensorflow_ipu::core::SpinUntil(std::chrono::milliseconds(2), [] { return false; });
           done.Add();
         }},
         pace);
  CHECK(done.Await());
  CHECK(tensorflow_ipu::core::SpinUntil(check::kDeadline, [&] { return pace->nanoseconds() < 20000000000; }));
  CHECK(pace->nanoseconds() >= 2000000);
}

TEST(what_an_answer_holds_goes_with_it) {
  for (const int64_t nanoseconds : {100, 1000000000}) {
    Count gone;
    auto held = std::shared_ptr<int>(new int(0), [&gone](const int* number) {
      delete number;
      gone.Add();
    });
    std::vector<Deliver> delivers;
    delivers.push_back([kept = std::move(held)](const Outcome&) {});
    Answer(std::move(delivers), PaceOf(nanoseconds));
    CHECK(gone.Await());
  }
}

}  // namespace
