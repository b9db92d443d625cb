// A connection to another worker, over which both ask each other for messages, and send what the other one asked for.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_LINK_H_
#define TENSORFLOW_IPU_KERNELS_CORE_LINK_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow_ipu/kernels/core/mutex.h"
#include "tensorflow_ipu/kernels/core/network.h"
#include "tensorflow_ipu/kernels/core/outcome.h"

namespace tensorflow_ipu::core {

// Calls of links that are cancelled together, and whether they were.
class LinkCalls : public Network::Calls {
 public:
  bool cancelled() const { return cancelled_; }

 protected:
  std::atomic<bool> cancelled_{false};
};

// What begins each frame on the wire, in the byte order of the machine. A key may follow, or a message's bytes.
struct FrameHeader {
  enum Kind : uint32_t {
    kAsk = 1,        // A request for the message of `key`, of `bytes` bytes. What answers it has the same `number`.
    kData = 2,       // Answers a request: the message follows.
    kOtherSize = 3,  // Answers a request: the message has `bytes` bytes, and not as many as were asked for.
    kWithdraw = 4,   // Cancels a request.
    kPing = 5,       // Asks for a sign of life,
    kPong = 6,       // which this is.
  };
  uint32_t kind;
  uint32_t key_bytes;
  uint64_t number;
  uint64_t bytes;
};

// Messages are pulled: one leaves its worker when the other has requested it, and is read straight into the memory that
// waits for it, so that nothing has to be buffered that comes too early. The thread that sends writes to the socket
// itself, as many bytes as that takes at once. The rest is written, and all is read, by the poller's thread.
//
// Thread-safe, but for what says otherwise. Calls end as Network says, without locks.
class Link {
 public:
  using Calls = std::shared_ptr<LinkCalls>;
  using Done = Network::Done;

  // `socket` is connected, and does not block; the link closes it. `poller`, of epoll, has it for reading, and gets
  // asked for writing.
  Link(int socket, int poller) : socket_(socket), poller_(poller) {}
  ~Link();

  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  int socket() const { return socket_; }

  void Send(const Calls& calls, const std::string& key, std::shared_ptr<const Message> message, Done done)
      IPU_EXCLUDES(mutex_);
  void Receive(const Calls& calls, const std::string& key, std::shared_ptr<Message> message, Done done)
      IPU_EXCLUDES(mutex_);

  // Asks for a sign of life, which may never come; the number is for Forget.
  uint64_t Ping(Done done) IPU_EXCLUDES(mutex_);
  void Forget(uint64_t ping, Outcome why) IPU_EXCLUDES(mutex_);

  // Ends those of these calls that are open.
  void Cancel(const Network::Calls* calls) IPU_EXCLUDES(mutex_);

  // For the poller's thread alone: the socket has something to read, or takes something again. `Read` returns whether
  // more may come.
  bool Read() IPU_EXCLUDES(mutex_);
  void Write() IPU_EXCLUDES(mutex_);

 private:
  // A message to send, which the other worker has not requested yet.
  struct Offer {
    Calls calls;
    std::shared_ptr<const Message> message;
    Done done;
  };
  // A request of the other worker for a message that is not here yet.
  struct Request {
    uint64_t number;
    uint64_t bytes;
  };
  // A request of this worker, which waits for its answer.
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
    Outcome outcome;
  };

  void Answer(const Request& request, Offer offer, std::vector<Ended>& ended) IPU_REQUIRES(mutex_);
  void Queue(const FrameHeader& header, const std::string& key = "") IPU_REQUIRES(mutex_);
  void Flush() IPU_EXCLUDES(mutex_);
  int WriteSome(Frame& frame) const;
  void WatchForWriting(bool watch) const;

  bool Parse() IPU_EXCLUDES(mutex_);
  bool Take(const FrameHeader& header, const std::string& key) IPU_EXCLUDES(mutex_);
  void Complete() IPU_EXCLUDES(mutex_);
  bool Lose(const std::string& why) IPU_EXCLUDES(mutex_);
  Outcome Gone() const IPU_REQUIRES(mutex_);

  static void End(std::vector<Ended>& ended);

  const int socket_;
  const int poller_;

  Mutex mutex_;
  std::map<std::string, Offer> offers_ IPU_GUARDED_BY(mutex_);
  std::map<std::string, Request> requests_ IPU_GUARDED_BY(mutex_);
  std::map<uint64_t, Awaited> awaited_ IPU_GUARDED_BY(mutex_);
  std::map<uint64_t, Done> pings_ IPU_GUARDED_BY(mutex_);
  uint64_t next_ IPU_GUARDED_BY(mutex_) = 1;
  std::deque<Frame> frames_ IPU_GUARDED_BY(mutex_);  // The first is the writing thread's, if there is one.
  bool writing_ IPU_GUARDED_BY(mutex_) = false;
  bool full_ IPU_GUARDED_BY(mutex_) = false;  // The system takes nothing more for now.
  std::string lost_ IPU_GUARDED_BY(mutex_);   // Why the other worker is gone; empty while it is there.

  // The poller's thread alone: what was read and not understood yet, and the message that is being read.
  std::array<std::byte, 16384> buffer_;
  std::size_t filled_ = 0;
  uint64_t reading_ = 0;           // Its number; 0: none.
  std::shared_ptr<Message> body_;  // Null where nobody waits for it any more.
  std::size_t body_bytes_ = 0;
  std::size_t body_read_ = 0;
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_LINK_H_
