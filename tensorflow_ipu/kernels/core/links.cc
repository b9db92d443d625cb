#include "tensorflow_ipu/kernels/core/links.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "tensorflow_ipu/kernels/core/deadlines.h"
#include "tensorflow_ipu/kernels/core/threads.h"

namespace tensorflow_ipu::core {

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
                                   Outcome* outcome) {
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
  *outcome = watched ? StartThread("ipu-links", [polled] { Poll(polled); })
                     : Outcome{Code::kResourceExhausted, "The system has no more descriptors of files."};
  return outcome->ok() ? std::shared_ptr<Links>(new Links(polled)) : nullptr;
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
        ->Forget(ping, Outcome::DeadlineExceeded("The worker does not answer."));
  });
}

}  // namespace tensorflow_ipu::core
