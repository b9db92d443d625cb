// Tests messages over MPI: in any order, of any size, cancelled at any time.
#include "tensorflow_ipu/kernels/collectives/mpi_communicator.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/core/fake_mpi.h"
#include "tests/core/threads.h"
#include "tests/core/workers_fixture.h"

namespace {

using namespace check;
using namespace tensorflow_ipu::core;

// Two ranks, and the results of their calls.
struct Pair {
  ~Pair() {
    for (const auto& communicator : ranks) communicator->Leave();
  }

  struct Call {
    std::shared_ptr<Message> message;
    std::shared_ptr<Ending> ending = std::make_shared<Ending>();
  };

  Call Send(int from, const std::string& key, const std::string& text) const {
    Call call{MessageOfText(text)};
    ranks[static_cast<std::size_t>(from)]->Send(calls[static_cast<std::size_t>(from)], 1 - from, key, call.message,
                                                Ends(call));
    return call;
  }

  Call Receive(int to, const std::string& key, std::size_t bytes) const {
    Call call{std::make_shared<Message>(bytes)};
    ranks[static_cast<std::size_t>(to)]->Receive(calls[static_cast<std::size_t>(to)], 1 - to, key, call.message,
                                                 Ends(call));
    return call;
  }

  static Communicator::Done Ends(const Call& call) { return NoteIn(call.ending); }

  // Answers with the bytes of the question.
  static std::shared_ptr<const Message> Answer(const Key& question, std::size_t) { return MessageOf(question); }

  FakeMpi world{2};
  std::vector<std::shared_ptr<MpiCommunicator>> ranks = JoinedCommunicators(world, {Answer, Answer});
  std::vector<std::shared_ptr<Communicator::Calls>> calls = {ranks[0]->NewCalls(), ranks[1]->NewCalls()};
};

TEST(MpiCommunicator, messages_are_matched_by_their_keys_in_any_order) {
  const Pair pair;
  for (const bool sends_first : {true, false}) {
    std::vector<Pair::Call> sent;
    std::vector<Pair::Call> received;
    const auto send = [&] {
      for (int i = 0; i < 100; ++i) sent.push_back(pair.Send(i % 2, std::to_string(i), std::string(i + 1, 'a')));
    };
    if (sends_first) send();
    for (int i = 99; i >= 0; --i) received.push_back(pair.Receive(1 - i % 2, std::to_string(i), i + 1));
    if (!sends_first) send();
    for (const auto& call : sent) EXPECT_TRUE(call.ending->Await() && call.ending->status.ok());
    for (const auto& call : received) {
      EXPECT_TRUE(call.ending->Await() && call.ending->status.ok());
      EXPECT_EQ(TextOf(*call.message), std::string(call.message->bytes(), 'a'));
    }
  }
}

TEST(MpiCommunicator, message_of_another_size_fails_at_its_receiver) {
  const Pair pair;
  const auto received = pair.Receive(1, "key", 3);
  const auto sent = pair.Send(0, "key", "four");
  EXPECT_TRUE(received.ending->EndsWith(absl::StatusCode::kInvalidArgument));
  EXPECT_TRUE(received.ending->HasMessage("4 bytes instead of 3."));
  EXPECT_TRUE(sent.ending->Await() && sent.ending->status.ok());
}

TEST(MpiCommunicator, cancelled_calls_end_at_once_and_their_key_can_be_used_again) {
  const Pair pair;
  for (int round = 0; round < 20; ++round) {
    const auto calls = pair.ranks[1]->NewCalls();
    Pair::Call cancelled{std::make_shared<Message>(4)};
    pair.ranks[1]->Receive(calls, 0, "key", cancelled.message, Pair::Ends(cancelled));
    std::shared_ptr<Pair::Call> race;
    if (round % 2 == 1) race = std::make_shared<Pair::Call>(pair.Send(0, "key", "race"));
    calls->Cancel();
    EXPECT_TRUE(cancelled.ending->Await());
    if (race != nullptr && cancelled.ending->status.ok()) continue;
    EXPECT_TRUE(cancelled.ending->EndsWith(absl::StatusCode::kCancelled) || cancelled.ending->status.ok());
    if (race == nullptr) race = std::make_shared<Pair::Call>(pair.Send(0, "key", "next"));
    // The message that the cancelled call had requested may be in flight to it.
    pair.Receive(1, "other", 4);
    pair.Send(0, "other", "done");
  }
  const auto late = pair.ranks[0]->NewCalls();
  late->Cancel();
  Pair::Call refused{MessageOfText("text")};
  pair.ranks[0]->Send(late, 1, "late", refused.message, Pair::Ends(refused));
  EXPECT_TRUE(refused.ending->EndsWith(absl::StatusCode::kCancelled));
}

TEST(MpiCommunicator, failure_of_mpi_ends_all_calls_and_later_ones) {
  Pair pair;
  const auto offered = pair.Send(0, "nobody", "text");
  const auto awaited = pair.Receive(0, "never", 4);
  pair.world.Break();
  for (const auto& call : {offered, awaited, pair.Receive(0, "later", 4)}) {
    EXPECT_TRUE(call.ending->EndsWith(absl::StatusCode::kUnavailable));
    EXPECT_TRUE(call.ending->HasMessage("MPI_Test: a lost process"));
  }
}

TEST(MpiCommunicator, questions_are_answered_without_a_call_of_the_other_worker) {
  const Pair pair;
  Pair::Call query{std::make_shared<Message>(sizeof(Key))};
  pair.ranks[0]->Ask(pair.calls[0], 1, std::string("question"), query.message, Pair::Ends(query));
  EXPECT_TRUE(query.ending->Await() && query.ending->status.ok());
  EXPECT_EQ(ValueOf<Key>(*query.message), Key("question"));
}

TEST(MpiCommunicator, unsupported_calls_are_rejected) {
  const Pair pair;
  pair.Send(0, "key", "text");
  EXPECT_TRUE(pair.Send(0, "key", "text").ending->EndsWith(absl::StatusCode::kFailedPrecondition));
  EXPECT_TRUE(
      pair.Receive(0, "large", Communicator::kMostBytes + 1).ending->EndsWith(absl::StatusCode::kInvalidArgument));
}

TEST(MpiCommunicator, leaving_ends_open_calls_and_later_ones) {
  const Pair pair;
  const auto offered = pair.Send(0, "nobody", "text");
  const auto awaited = pair.Receive(0, "never", 4);
  for (const auto& communicator : pair.ranks) communicator->Leave();
  for (const auto& call : {offered, awaited, pair.Receive(0, "later", 4)}) {
    EXPECT_TRUE(call.ending->EndsWith(absl::StatusCode::kCancelled));
  }
}

TEST(MpiCommunicator, no_request_is_open_after_all_calls_are_done) {
  Pair pair;
  const auto received = pair.Receive(1, "key", 4);
  pair.Send(0, "key", "text");
  EXPECT_TRUE(received.ending->Await() && received.ending->status.ok());
  for (const auto& communicator : pair.ranks) communicator->Leave();
  EXPECT_EQ(pair.world.open(), std::size_t{0});
}

}  // namespace
