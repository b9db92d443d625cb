// Messages over sockets arrive whole, in whatever order both sides name them, and each wait for one has an end.
#include "tensorflow_ipu/kernels/core/links.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/core/check.h"
#include "tests/core/threads.h"
#include "tests/core/workers_fixture.h"

namespace {

using namespace check;
namespace core = tensorflow_ipu::core;

// A call, which may end after its test.
struct Ended {
  Network::Done Note() const { return NoteIn(ending); }
  bool With(Code code) const { return ending->EndsWith(code); }
  bool Says(const char* words) const { return ending->Says(words); }
  bool IsOpen() const { return ending->IsOpen(); }

  const std::shared_ptr<Ending> ending = std::make_shared<Ending>();
};

std::shared_ptr<Message> MessageOf(std::size_t bytes, int first) {
  auto message = std::make_shared<Message>(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    message->data()[i] = static_cast<std::byte>(static_cast<std::size_t>(first) + i * 7);
  return message;
}

bool Same(const Message& one, const Message& other) {
  return one.bytes() == other.bytes() && std::memcmp(one.data(), other.data(), one.bytes()) == 0;
}

// Worker 0 with its links, and worker 1 as a bare socket.
struct Bare {
  Bare() {
    int ends[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    Status status;
    links = Links::Make({-1, ends[0]}, -1, "", &status);
    socket = ends[1];
    calls = links->NewCalls();
  }
  ~Bare() { Close(); }

  void Close() {
    if (socket >= 0) close(socket);
    socket = -1;
  }

  void Write(const core::FrameHeader& header) const { CHECK(write(socket, &header, sizeof(header)) == sizeof(header)); }

  core::FrameHeader Read(std::string* key) const {
    core::FrameHeader header{};
    CHECK(recv(socket, &header, sizeof(header), MSG_WAITALL) == sizeof(header));
    key->resize(header.key_bytes);
    if (!key->empty()) CHECK(recv(socket, key->data(), key->size(), MSG_WAITALL) == static_cast<ssize_t>(key->size()));
    return header;
  }

  std::shared_ptr<Links> links;
  std::shared_ptr<Network::Calls> calls;
  int socket = -1;
};

TEST(who_comes_late_is_refused_whatever_it_says) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const place = reinterpret_cast<sockaddr*>(&address);
  CHECK_EQ(bind(listener, place, length), 0);
  CHECK_EQ(listen(listener, 4), 0);
  CHECK_EQ(getsockname(listener, place, &length), 0);
  int ends[2];
  CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  Status status;
  const auto links = Links::Make({-1, ends[0]}, listener, "You are late.", &status);
  CHECK(status.ok());
  for (int i = 0; i < 3; ++i) {
    const int late = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_EQ(connect(late, place, length), 0);
    CHECK_EQ(send(late, "hello", 5, MSG_NOSIGNAL), 5);
    std::string said(20, ' ');
    CHECK_EQ(recv(late, said.data(), said.size(), MSG_WAITALL), 13);
    CHECK(said.substr(0, 13) == "You are late.");
    close(late);
  }
  close(ends[1]);
}

TEST(messages_of_all_sizes_arrive_whichever_side_comes_first) {
  const auto networks = LinkedNetworks(2);
  const auto there = networks[0]->NewCalls();
  const auto here = networks[1]->NewCalls();
  const std::vector<std::size_t> sizes = {1, 100, 16384, 16385, 5000000};
  for (const bool send_first : {true, false}) {
    std::vector<std::shared_ptr<Message>> sent;
    std::vector<std::shared_ptr<Message>> received;
    std::vector<Ended> ends;
    const auto send = [&](std::size_t i) {
      sent.push_back(MessageOf(sizes[i], static_cast<int>(i)));
      ends.emplace_back();
      networks[0]->Send(there, 1, "key" + std::to_string(i), sent.back(), ends.back().Note());
    };
    const auto receive = [&](std::size_t i) {
      received.push_back(std::make_shared<Message>(sizes[i]));
      ends.emplace_back();
      networks[1]->Receive(here, 0, "key" + std::to_string(i), received.back(), ends.back().Note());
    };
    for (std::size_t i = 0; i < sizes.size(); ++i) send_first ? send(i) : receive(i);
    for (std::size_t i = 0; i < sizes.size(); ++i) send_first ? receive(i) : send(i);
    for (const Ended& end : ends) CHECK(end.With(Code::kOk));
    for (std::size_t i = 0; i < sizes.size(); ++i) CHECK(Same(*sent[i], *received[i]));
  }
}

TEST(both_ways_are_full_at_once) {
  const auto networks = LinkedNetworks(2);
  std::vector<Ended> ends;
  for (std::size_t worker = 0; worker < 2; ++worker) {
    const auto calls = networks[worker]->NewCalls();
    for (int i = 0; i < 8; ++i) {
      const std::string key = std::to_string(i) + ":";
      ends.emplace_back();
      networks[worker]->Send(calls, static_cast<int64_t>(1 - worker), key + std::to_string(worker),
                             MessageOf(std::size_t{1} << 20, i), ends.back().Note());
      ends.emplace_back();
      networks[worker]->Receive(calls, static_cast<int64_t>(1 - worker), key + std::to_string(1 - worker),
                                std::make_shared<Message>(std::size_t{1} << 20), ends.back().Note());
    }
  }
  for (const Ended& end : ends) CHECK(end.With(Code::kOk));
}

TEST(another_size_is_told_to_who_asked) {
  const auto networks = LinkedNetworks(2);
  Ended sent, received;
  networks[0]->Send(networks[0]->NewCalls(), 1, "key", MessageOf(3, 0), sent.Note());
  networks[1]->Receive(networks[1]->NewCalls(), 0, "key", MessageOf(4, 0), received.Note());
  CHECK(received.With(Code::kInvalidArgument) && received.Says("3 bytes, where 4 were expected"));
  CHECK(sent.With(Code::kOk));
}

TEST(calls_are_cancelled_together_and_those_to_come) {
  Bare bare;
  const auto others = bare.links->NewCalls();
  Ended sent, received, later, other;
  bare.links->Send(bare.calls, 1, "a", MessageOf(1, 0), sent.Note());
  bare.links->Receive(bare.calls, 1, "b", MessageOf(1, 0), received.Note());
  bare.links->Receive(others, 1, "c", MessageOf(1, 0), other.Note());
  bare.calls->Cancel();
  bare.links->Send(bare.calls, 1, "d", MessageOf(1, 0), later.Note());
  for (Ended* end : {&sent, &received, &later}) CHECK(end->With(Code::kCancelled));
  CHECK(other.IsOpen());
  std::string key;
  const uint64_t asked = bare.Read(&key).number;
  CHECK_EQ(key, "b");
  bare.Read(&key);
  CHECK_EQ(key, "c");
  const core::FrameHeader withdrawn = bare.Read(&key);
  CHECK(withdrawn.kind == core::FrameHeader::kWithdraw && withdrawn.number == asked);
}

// The reply was in flight when the request was withdrawn; the next frame is understood.
TEST(answers_that_nobody_waits_for_are_dropped) {
  Bare bare;
  Ended dropped, wanted;
  bare.links->Receive(bare.calls, 1, "a", MessageOf(40000, 0), dropped.Note());
  std::string key;
  const uint64_t first = bare.Read(&key).number;
  bare.calls->Cancel();
  bare.Read(&key);
  const auto message = std::make_shared<Message>(8);
  const auto calls = bare.links->NewCalls();
  bare.links->Receive(calls, 1, "b", message, wanted.Note());
  const uint64_t second = bare.Read(&key).number;
  bare.Write({core::FrameHeader::kData, 0, first, 40000});
  const std::vector<char> body(40000, 'x');
  CHECK(write(bare.socket, body.data(), body.size()) == static_cast<ssize_t>(body.size()));
  bare.Write({core::FrameHeader::kData, 0, second, 8});
  CHECK(write(bare.socket, "12345678", 8) == 8);
  CHECK(wanted.With(Code::kOk));
  CHECK(dropped.With(Code::kCancelled));
  CHECK(std::memcmp(message->data(), "12345678", 8) == 0);
}

TEST(withdrawn_questions_are_forgotten) {
  Bare bare;
  Ended sent;
  bare.Write({core::FrameHeader::kAsk, 0, 5, 3});
  bare.Write({core::FrameHeader::kWithdraw, 0, 5, 0});
  bare.Write({core::FrameHeader::kPing, 0, 6, 0});
  std::string key;
  CHECK(bare.Read(&key).kind == core::FrameHeader::kPong);  // So it has read all of that.
  bare.links->Send(bare.calls, 1, "", MessageOf(3, 0), sent.Note());
  CHECK(sent.IsOpen());
}

TEST(a_process_that_is_gone_ends_all_calls_and_those_to_come) {
  Bare bare;
  Ended sent, received, check, later;
  bare.links->Send(bare.calls, 1, "a", MessageOf(1, 0), sent.Note());
  bare.links->Receive(bare.calls, 1, "b", MessageOf(1, 0), received.Note());
  bare.links->Check(1, check::kDeadline, check.Note());
  bare.Close();
  for (Ended* end : {&sent, &received, &check}) CHECK(end->With(Code::kUnavailable));
  bare.links->Receive(bare.calls, 1, "c", MessageOf(1, 0), later.Note());
  CHECK(later.With(Code::kUnavailable));
}

// The other end closes in the midst of a message that the socket cannot take.
TEST(what_is_written_ends_with_a_process_that_reads_nothing_or_is_cancelled) {
  for (const bool cancelled : {false, true}) {
    Bare bare;
    Ended sent;
    bare.Write({core::FrameHeader::kAsk, 0, 1, 50000000});
    bare.links->Send(bare.calls, 1, "", MessageOf(50000000, 0), sent.Note());
    CHECK(sent.IsOpen());
    cancelled ? bare.calls->Cancel() : bare.Close();
    CHECK(sent.With(cancelled ? Code::kCancelled : Code::kUnavailable));
  }
}

TEST(what_no_worker_sends_ends_the_link) {
  for (const core::FrameHeader& header : {core::FrameHeader{99, 0, 1, 1}, core::FrameHeader{1, 1u << 30, 1, 1},
                                          core::FrameHeader{core::FrameHeader::kData, 0, 0, 1}}) {
    Bare bare;
    Ended received;
    bare.links->Receive(bare.calls, 1, "a", MessageOf(1, 0), received.Note());
    bare.Write(header);
    CHECK(received.With(Code::kUnavailable) && received.Says("no worker sends"));
  }
}

TEST(a_process_that_is_there_answers_and_one_that_hangs_is_told_at_the_limit) {
  const auto networks = LinkedNetworks(2);
  Ended there, hangs;
  networks[0]->Check(1, check::kDeadline, there.Note());
  CHECK(there.With(Code::kOk));
  Bare bare;
  bare.links->Check(1, std::chrono::milliseconds(1), hangs.Note());
  CHECK(hangs.With(Code::kDeadlineExceeded));
}

}  // namespace
