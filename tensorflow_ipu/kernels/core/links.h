// A network of direct connections, one to each other worker.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow_ipu/kernels/core/mutex.h"
#include "tensorflow_ipu/kernels/core/network.h"
#include "tensorflow_ipu/kernels/core/status.h"

namespace tensorflow_ipu::core {

// Calls that are cancelled together.
class LinkCalls : public Network::Calls {
 public:
  bool cancelled() const { return cancelled_; }

 protected:
  std::atomic<bool> cancelled_{false};
};

// The head of a frame on the wire, in the machine's byte order. A key or a message's bytes may follow.
struct FrameHeader {
  enum Kind : uint32_t {
    kAsk = 1,        // Requests the message `key` of `bytes` bytes. The reply has the same `number`.
    kData = 2,       // The reply: the message follows.
    kOtherSize = 3,  // The reply: the message has `bytes` bytes instead of the requested size.
    kWithdraw = 4,   // Cancels a request.
    kPing = 5,       // Checks that the worker responds.
    kPong = 6,       // The reply to kPing.
  };
  uint32_t kind;
  uint32_t key_bytes;
  uint64_t number;
  uint64_t bytes;
};

// The receiver pulls messages: one is sent once it was requested, and read straight into its memory, so that nothing is
// buffered. The sending thread writes as much as the socket takes; the poller's thread writes the rest and reads
// everything. Thread-safe, unless stated otherwise.
class Link {
 public:
  using Calls = std::shared_ptr<LinkCalls>;
  using Done = Network::Done;

  // `socket` is connected and non-blocking; the link closes it. The epoll instance `poller` already watches it for
  // reading.
  Link(int socket, int poller) : socket_(socket), poller_(poller) {}
  ~Link();

  int socket() const { return socket_; }

  void Send(const Calls& calls, const std::string& key, std::shared_ptr<const Message> message, Done done)
      IPU_EXCLUDES(mutex_);
  void Receive(const Calls& calls, const std::string& key, std::shared_ptr<Message> message, Done done)
      IPU_EXCLUDES(mutex_);

  // Checks that the worker responds; the result is for Forget.
  uint64_t Ping(Done done) IPU_EXCLUDES(mutex_);
  void Forget(uint64_t ping, Status why) IPU_EXCLUDES(mutex_);

  void Cancel(const Network::Calls* calls) IPU_EXCLUDES(mutex_);

  // For the poller's thread alone. `Read` returns whether more may come.
  bool Read() IPU_EXCLUDES(mutex_);
  void Write() IPU_EXCLUDES(mutex_);

 private:
  // A message that the other worker has not requested yet.
  struct Offer {
    Calls calls;
    std::shared_ptr<const Message> message;
    Done done;
  };
  // A request for a message that is not here yet.
  struct Request {
    uint64_t number;
    uint64_t bytes;
  };
  // A request of this worker.
  struct Awaited {
    Calls calls;
    std::shared_ptr<Message> message;
    Done done;
  };
  struct Frame {
    std::string head;
    std::shared_ptr<const Message> body;
    std::size_t written = 0;
    Calls calls;
    Done done;

    std::size_t bytes() const { return head.size() + (body == nullptr ? 0 : body->bytes()); }
  };
  struct Ended {
    Done done;
    Status status;
  };

  void Reply(const Request& request, Offer offer, std::vector<Ended>& ended) IPU_REQUIRES(mutex_);
  void Queue(const FrameHeader& header, const std::string& key = "") IPU_REQUIRES(mutex_);
  void Flush() IPU_EXCLUDES(mutex_);
  int WriteSome(Frame& frame) const;
  void WatchForWriting(bool watch) const;

  bool Parse() IPU_EXCLUDES(mutex_);
  bool Take(const FrameHeader& header, const std::string& key) IPU_EXCLUDES(mutex_);
  void Complete() IPU_EXCLUDES(mutex_);
  bool Lose(const std::string& why) IPU_EXCLUDES(mutex_);
  Status Gone() const IPU_REQUIRES(mutex_);

  static void End(std::vector<Ended>& ended);

  const int socket_;
  const int poller_;

  Mutex mutex_;
  std::map<std::string, Offer> offers_ IPU_GUARDED_BY(mutex_);
  std::map<std::string, Request> requests_ IPU_GUARDED_BY(mutex_);
  std::map<uint64_t, Awaited> awaited_ IPU_GUARDED_BY(mutex_);
  std::map<uint64_t, Done> pings_ IPU_GUARDED_BY(mutex_);
  uint64_t next_ IPU_GUARDED_BY(mutex_) = 1;
  std::deque<Frame> frames_ IPU_GUARDED_BY(mutex_);  // The first one belongs to the writing thread, if there is one.
  bool writing_ IPU_GUARDED_BY(mutex_) = false;
  bool full_ IPU_GUARDED_BY(mutex_) = false;  // The socket takes no more for now.
  std::string lost_ IPU_GUARDED_BY(mutex_);   // Why the other worker is gone; empty while it is there.

  // Used by the poller's thread alone: unparsed bytes, and the message that is being read.
  std::array<std::byte, 16384> buffer_;
  std::size_t filled_ = 0;
  uint64_t reading_ = 0;           // Its number, or 0.
  std::shared_ptr<Message> body_;  // Null if it was cancelled.
  std::size_t body_bytes_ = 0;
  std::size_t body_read_ = 0;
};

// One thread reads from all links as long as this object lives. Thread-safe.
class Links : public Network {
 public:
  // `sockets` are connected, by worker; -1 for this process. Whoever connects to the non-blocking `listener` (-1: none)
  // is sent `refusal`. The links close all of them; on an error the result is null and they are closed at once.
  static std::shared_ptr<Links> Make(const std::vector<int>& sockets, int listener, const std::string& refusal,
                                     Status* status);
  ~Links() override;

  std::shared_ptr<Calls> NewCalls() override;
  void Send(const std::shared_ptr<Calls>& calls, int64_t to, const std::string& key,
            std::shared_ptr<const Message> message, Done done) override;
  void Receive(const std::shared_ptr<Calls>& calls, int64_t from, const std::string& key,
               std::shared_ptr<Message> message, Done done) override;
  void Check(int64_t worker, std::chrono::nanoseconds limit, Done done) override;

 private:
  struct Polled;

  explicit Links(std::shared_ptr<Polled> polled) : polled_(std::move(polled)) {}

  static void Poll(const std::shared_ptr<Polled>& polled);

  Link& To(int64_t worker) const;

  const std::shared_ptr<Polled> polled_;
};

}  // namespace tensorflow_ipu::core
