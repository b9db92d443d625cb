#include "tensorflow_ipu/kernels/core/links.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "tensorflow_ipu/kernels/core/threads.h"

namespace tensorflow_ipu::core {

namespace {

// No worker sends longer keys.
constexpr std::size_t kLongestKey = 4096;

std::string ErrorText(int error) { return std::strerror(error); }

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

Link::~Link() { close(socket_); }

void Link::End(std::vector<Ended>& ended) {
  for (Ended& one : ended) one.done(std::move(one.status));
}

Status Link::Gone() const { return Status::Unavailable(lost_); }

void Link::Send(const Calls& calls, const std::string& key, std::shared_ptr<const Message> message, Done done) {
  std::vector<Ended> ended;
  bool replied = false;
  {
    const Lock lock(mutex_);
    if (calls->cancelled()) {
      ended.push_back({std::move(done), Status::Cancelled("The call was cancelled.")});
    } else if (!lost_.empty()) {
      ended.push_back({std::move(done), Gone()});
    } else if (const auto request = requests_.find(key); request != requests_.end()) {
      Reply(request->second, {calls, std::move(message), std::move(done)}, ended);
      requests_.erase(request);
      replied = true;
    } else {
      offers_.insert_or_assign(key, Offer{calls, std::move(message), std::move(done)});
    }
  }
  if (replied) Flush();
  End(ended);
}

void Link::Receive(const Calls& calls, const std::string& key, std::shared_ptr<Message> message, Done done) {
  std::vector<Ended> ended;
  {
    const Lock lock(mutex_);
    if (calls->cancelled()) {
      ended.push_back({std::move(done), Status::Cancelled("The call was cancelled.")});
    } else if (!lost_.empty()) {
      ended.push_back({std::move(done), Gone()});
    } else {
      const uint64_t number = next_++;
      Queue({FrameHeader::kAsk, static_cast<uint32_t>(key.size()), number, message->bytes()}, key);
      awaited_.emplace(number, Awaited{calls, std::move(message), std::move(done)});
    }
  }
  if (!ended.empty()) return End(ended);
  Flush();
}

uint64_t Link::Ping(Done done) {
  std::vector<Ended> ended;
  uint64_t number = 0;
  {
    const Lock lock(mutex_);
    number = next_++;
    if (lost_.empty()) {
      Queue({FrameHeader::kPing, 0, number, 0});
      pings_.emplace(number, std::move(done));
    } else {
      ended.push_back({std::move(done), Gone()});
    }
  }
  Flush();
  End(ended);
  return number;
}

void Link::Forget(uint64_t ping, Status why) {
  Done done;
  {
    const Lock lock(mutex_);
    const auto found = pings_.find(ping);
    if (found == pings_.end()) return;
    done = std::move(found->second);
    pings_.erase(found);
  }
  done(std::move(why));
}

void Link::Cancel(const Network::Calls* calls) {
  std::vector<Ended> ended;
  {
    const Lock lock(mutex_);
    const auto end = [&ended](Done& done) {
      ended.push_back({std::move(done), Status::Cancelled("The call was cancelled.")});
    };
    for (auto offer = offers_.begin(); offer != offers_.end();) {
      const bool theirs = offer->second.calls.get() == calls;
      if (theirs) end(offer->second.done);
      offer = theirs ? offers_.erase(offer) : std::next(offer);
    }
    for (auto wanted = awaited_.begin(); wanted != awaited_.end();) {
      const bool theirs = wanted->second.calls.get() == calls;
      if (theirs) end(wanted->second.done);
      if (theirs) Queue({FrameHeader::kWithdraw, 0, wanted->first, 0});
      wanted = theirs ? awaited_.erase(wanted) : std::next(wanted);
    }
    // A frame that has begun goes on, since the stream must stay intact.
    for (Frame& frame : frames_) {
      if (frame.calls.get() != calls || frame.done == nullptr) continue;
      end(frame.done);
      frame.done = nullptr;
    }
  }
  Flush();
  End(ended);
}

void Link::Reply(const Request& request, Offer offer, std::vector<Ended>& ended) {
  const std::size_t bytes = offer.message->bytes();
  if (bytes != request.bytes) {
    Queue({FrameHeader::kOtherSize, 0, request.number, bytes});
    ended.push_back({std::move(offer.done), Status::Ok()});  // The requester reports the error.
    return;
  }
  Queue({FrameHeader::kData, 0, request.number, bytes});
  Frame& frame = frames_.back();
  frame.body = std::move(offer.message);
  frame.calls = std::move(offer.calls);
  frame.done = std::move(offer.done);
}

void Link::Queue(const FrameHeader& header, const std::string& key) {
  Frame& frame = frames_.emplace_back();
  frame.head.reserve(sizeof(header) + key.size());
  frame.head.assign(reinterpret_cast<const char*>(&header), sizeof(header));
  frame.head += key;
}

// Writes frames until the socket takes no more; one thread at a time.
void Link::Flush() {
  std::vector<Ended> ended;
  {
    Lock lock(mutex_);
    if (writing_ || full_) return;
    writing_ = true;
    while (!frames_.empty()) {
      Frame& frame = frames_.front();
      int error = ECONNRESET;
      if (lost_.empty()) {
        lock.Unlock();
        error = WriteSome(frame);
        lock.Relock();
      }
      if (WouldBlock(error) && lost_.empty()) {
        full_ = true;
        WatchForWriting(true);
        break;
      }
      // The reader reports a lost worker, after it has read what came before.
      const Status status = error == 0 ? Status::Ok() : Status::Unavailable(ErrorText(error));
      if (frame.done != nullptr) ended.push_back({std::move(frame.done), status});
      frames_.pop_front();
    }
    writing_ = false;
  }
  End(ended);
}

// Returns 0 or the error.
int Link::WriteSome(Frame& frame) const {
  while (frame.written < frame.bytes()) {
    const std::size_t head = frame.head.size();
    std::array<iovec, 2> parts{};
    std::size_t count = 0;
    if (frame.written < head) parts[count++] = {frame.head.data() + frame.written, head - frame.written};
    if (frame.body != nullptr) {
      const std::size_t begun = frame.written > head ? frame.written - head : 0;
      parts[count++] = {frame.body->data() + begun, frame.body->bytes() - begun};
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t written = sendmsg(socket_, &message, MSG_NOSIGNAL);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    frame.written += static_cast<std::size_t>(written);
  }
  return 0;
}

void Link::WatchForWriting(bool watch) const {
  epoll_event event{};
  event.events = EPOLLIN | (watch ? EPOLLOUT : 0U);
  event.data.fd = socket_;
  epoll_ctl(poller_, EPOLL_CTL_MOD, socket_, &event);
}

void Link::Write() {
  {
    const Lock lock(mutex_);
    full_ = false;
    WatchForWriting(false);
  }
  Flush();
}

bool Link::Read() {
  while (true) {
    std::byte* to = buffer_.data() + filled_;
    std::size_t room = buffer_.size() - filled_;
    if (reading_ != 0) {
      const std::size_t left = body_bytes_ - body_read_;
      to = body_ == nullptr ? buffer_.data() : body_->data() + body_read_;
      room = body_ == nullptr ? std::min(left, buffer_.size()) : left;
    }
    const ssize_t read = recv(socket_, to, room, 0);
    if (read < 0 && errno == EINTR) continue;
    if (read < 0 && WouldBlock(errno)) return true;
    if (read < 0) return Lose(ErrorText(errno));
    if (read == 0) return Lose("The connection was closed.");
    if (reading_ != 0) {
      body_read_ += static_cast<std::size_t>(read);
      if (body_read_ == body_bytes_) Complete();
      continue;
    }
    filled_ += static_cast<std::size_t>(read);
    if (!Parse()) return Lose("It sends what no worker sends.");
  }
}

// Returns whether the buffer holds valid frames.
bool Link::Parse() {
  std::size_t at = 0;
  while (reading_ == 0 && filled_ - at >= sizeof(FrameHeader)) {
    FrameHeader header;
    std::memcpy(&header, buffer_.data() + at, sizeof(header));
    if (header.key_bytes > kLongestKey) return false;
    if (filled_ - at < sizeof(header) + header.key_bytes) break;
    at += sizeof(header);
    const std::string key(reinterpret_cast<const char*>(buffer_.data() + at), header.key_bytes);
    at += header.key_bytes;
    if (!Take(header, key)) return false;
    if (reading_ == 0) continue;
    const std::size_t here = std::min(filled_ - at, body_bytes_);
    if (body_ != nullptr) std::memcpy(body_->data(), buffer_.data() + at, here);
    at += here;
    body_read_ = here;
    if (body_read_ == body_bytes_) Complete();
  }
  filled_ -= at;
  std::memmove(buffer_.data(), buffer_.data() + at, filled_);
  return true;
}

bool Link::Take(const FrameHeader& header, const std::string& key) {
  std::vector<Ended> ended;
  {
    const Lock lock(mutex_);
    switch (header.kind) {
      case FrameHeader::kAsk:
        if (const auto offer = offers_.find(key); offer != offers_.end()) {
          Reply({header.number, header.bytes}, std::move(offer->second), ended);
          offers_.erase(offer);
        } else {
          requests_.insert_or_assign(key, Request{header.number, header.bytes});
        }
        break;
      case FrameHeader::kWithdraw:
        for (auto request = requests_.begin(); request != requests_.end(); ++request) {
          if (request->second.number != header.number) continue;
          requests_.erase(request);
          break;
        }
        break;
      case FrameHeader::kData: {
        const auto wanted = awaited_.find(header.number);
        reading_ = header.number;
        body_ = wanted == awaited_.end() ? nullptr : wanted->second.message;
        body_bytes_ = header.bytes;
        body_read_ = 0;
        if (header.number == 0 || (body_ != nullptr && body_->bytes() != header.bytes)) return false;
        break;
      }
      case FrameHeader::kOtherSize:
        if (const auto wanted = awaited_.find(header.number); wanted != awaited_.end()) {
          ended.push_back(
              {std::move(wanted->second.done),
               Status::InvalidArgument(std::to_string(header.bytes) + " bytes, where " +
                                       std::to_string(wanted->second.message->bytes()) + " were expected.")});
          awaited_.erase(wanted);
        }
        break;
      case FrameHeader::kPing:
        Queue({FrameHeader::kPong, 0, header.number, 0});
        break;
      case FrameHeader::kPong:
        if (const auto ping = pings_.find(header.number); ping != pings_.end()) {
          ended.push_back({std::move(ping->second), Status::Ok()});
          pings_.erase(ping);
        }
        break;
      default:
        return false;
    }
  }
  Flush();
  End(ended);
  return true;
}

void Link::Complete() {
  Done done;
  {
    const Lock lock(mutex_);
    if (const auto wanted = awaited_.find(reading_); wanted != awaited_.end()) {
      done = std::move(wanted->second.done);
      awaited_.erase(wanted);
    }
  }
  reading_ = 0;
  body_ = nullptr;
  if (done != nullptr) done(Status::Ok());
}

// Fails all that is open and comes later. Returns false.
bool Link::Lose(const std::string& why) {
  std::vector<Ended> ended;
  {
    const Lock lock(mutex_);
    lost_ = why;
    full_ = false;
    for (auto& [key, offer] : offers_) ended.push_back({std::move(offer.done), Gone()});
    for (auto& [number, wanted] : awaited_) ended.push_back({std::move(wanted.done), Gone()});
    for (auto& [number, done] : pings_) ended.push_back({std::move(done), Gone()});
    offers_.clear();
    requests_.clear();
    awaited_.clear();
    pings_.clear();
  }
  body_ = nullptr;
  Flush();  // Ends the frames.
  End(ended);
  return false;
}

struct Links::Polled {
  Polled(int listens, std::string refuses)
      : poller(epoll_create1(EPOLL_CLOEXEC)),
        stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        listener(listens),
        refusal(std::move(refuses)) {}
  ~Polled() {
    for (const int one : refused) close(one);
    if (listener >= 0) close(listener);
    close(stop);
    close(poller);
  }

  bool Watch(int descriptor) const {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = descriptor;
    return epoll_ctl(poller, EPOLL_CTL_ADD, descriptor, &event) == 0;
  }

  // The socket stays open until the other end closes: closing it first would reset the connection, and the text would
  // be lost.
  void Refuse() {
    const int late = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (late < 0) return;
    refused.insert(late);
    send(late, refusal.data(), refusal.size(), MSG_NOSIGNAL);
    shutdown(late, SHUT_WR);
    Watch(late);
  }

  void ReadRefused(int socket) {
    std::array<char, 4096> ignored;
    const ssize_t count = recv(socket, ignored.data(), ignored.size(), 0);
    if (count > 0 || (count < 0 && errno == EAGAIN)) return;
    refused.erase(socket);
    close(socket);
  }

  const int poller;
  const int stop;
  std::vector<std::unique_ptr<Link>> links;  // Null for this process.
  std::map<int, Link*> by_socket;
  const int listener;
  const std::string refusal;
  std::set<int> refused;  // Used by the polling thread alone.
};

namespace {

class CallsOfLinks : public LinkCalls {
 public:
  CallsOfLinks(std::shared_ptr<const void> owner, const std::vector<std::unique_ptr<Link>>& links)
      : owner_(std::move(owner)), links_(links) {}

  void Cancel() override {
    if (cancelled_.exchange(true)) return;
    for (const auto& link : links_) {
      if (link != nullptr) link->Cancel(this);
    }
  }

 private:
  const std::shared_ptr<const void> owner_;  // Of the links.
  const std::vector<std::unique_ptr<Link>>& links_;
};

Link::Calls Own(const std::shared_ptr<Network::Calls>& calls) { return std::static_pointer_cast<LinkCalls>(calls); }

}  // namespace

std::shared_ptr<Links> Links::Make(const std::vector<int>& sockets, int listener, const std::string& refusal,
                                   Status* status) {
  const auto polled = std::make_shared<Polled>(listener, refusal);
  for (const int socket : sockets) {
    if (socket < 0) {
      polled->links.push_back(nullptr);
      continue;
    }
    fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
    polled->links.push_back(std::make_unique<Link>(socket, polled->poller));
    polled->by_socket[socket] = polled->links.back().get();
  }
  bool watched = polled->Watch(polled->stop) && (listener < 0 || polled->Watch(listener));
  for (const auto& [socket, link] : polled->by_socket) watched = polled->Watch(socket) && watched;
  *status = watched ? StartThread("ipu-links", [polled] { Poll(polled); })
                    : Status{Code::kResourceExhausted, "The system has no more descriptors of files."};
  return status->ok() ? std::shared_ptr<Links>(new Links(polled)) : nullptr;
}

Links::~Links() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(polled_->stop, &one, sizeof(one));
}

void Links::Poll(const std::shared_ptr<Polled>& polled) {
  std::array<epoll_event, 64> events;
  while (true) {
    const int count = epoll_wait(polled->poller, events.data(), static_cast<int>(events.size()), -1);
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      const int socket = event.data.fd;
      if (socket == polled->stop) return;
      if (socket == polled->listener) {
        polled->Refuse();
        continue;
      }
      if (polled->refused.count(socket) > 0) {
        polled->ReadRefused(socket);
        continue;
      }
      Link& link = *polled->by_socket.at(socket);
      if ((event.events & EPOLLOUT) != 0) link.Write();
      if ((event.events & (EPOLLIN | EPOLLERR | EPOLLHUP)) == 0 || link.Read()) continue;
      epoll_ctl(polled->poller, EPOLL_CTL_DEL, socket, nullptr);
    }
  }
}

Link& Links::To(int64_t worker) const { return *polled_->links.at(static_cast<std::size_t>(worker)); }

std::shared_ptr<Network::Calls> Links::NewCalls() { return std::make_shared<CallsOfLinks>(polled_, polled_->links); }

void Links::Send(const std::shared_ptr<Calls>& calls, int64_t to, const std::string& key,
                 std::shared_ptr<const Message> message, Done done) {
  To(to).Send(Own(calls), key, std::move(message), std::move(done));
}

void Links::Receive(const std::shared_ptr<Calls>& calls, int64_t from, const std::string& key,
                    std::shared_ptr<Message> message, Done done) {
  To(from).Receive(Own(calls), key, std::move(message), std::move(done));
}

void Links::Check(int64_t worker, std::chrono::nanoseconds limit, Done done) {
  const uint64_t ping = To(worker).Ping(std::move(done));
  Deadlines::Global().Add(Deadlines::Clock::now() + limit, [polled = polled_, worker, ping] {
    polled->links.at(static_cast<std::size_t>(worker))
        ->Forget(ping, Status::DeadlineExceeded("The worker does not answer."));
  });
}

}  // namespace tensorflow_ipu::core
