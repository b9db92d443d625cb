// How the processes of several workers send each other messages: what the core needs of it, whoever carries them.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_NETWORK_H_
#define TENSORFLOW_IPU_KERNELS_CORE_NETWORK_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "tensorflow_ipu/kernels/core/outcome.h"

namespace tensorflow_ipu::core {

// The memory of one message. Whoever has it under way keeps it.
class Message {
 public:
  // As tensors are aligned.
  static constexpr std::align_val_t kAlignment{64};

  explicit Message(std::size_t bytes)
      : bytes_(bytes), data_(static_cast<std::byte*>(::operator new(bytes == 0 ? 1 : bytes, kAlignment))) {}
  ~Message() { ::operator delete(data_, kAlignment); }

  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  const std::size_t bytes_;
  std::byte* const data_;
};

// Messages have a sender, a receiver and a key, which no other message of the two has while it is under way. The
// receiver asks for a message, and the sender keeps it until then.
//
// Thread-safe. `done` is called once for each call: on any thread, perhaps before the call returns, and must be short.
// The caller holds no lock that `done` takes.
class Network {
 public:
  using Done = std::function<void(Outcome)>;

  // Calls that are cancelled together.
  class Calls {
   public:
    virtual ~Calls() = default;

    // All that have not ended end as cancelled, and so do those that are still to come.
    virtual void Cancel() = 0;
  };

  virtual ~Network() = default;

  virtual std::shared_ptr<Calls> NewCalls() = 0;

  // `done` comes when the worker has taken the message.
  virtual void Send(const std::shared_ptr<Calls>& calls, int64_t to, const std::string& key,
                    std::shared_ptr<const Message> message, Done done) = 0;

  // `done` comes when the message has the worker's bytes. kUnavailable: the worker's process is gone. kInvalidArgument:
  // what it sent has another size.
  virtual void Receive(const std::shared_ptr<Calls>& calls, int64_t from, const std::string& key,
                       std::shared_ptr<Message> message, Done done) = 0;

  // Asks whether the process of a worker answers within `limit`.
  virtual void Check(int64_t worker, std::chrono::nanoseconds limit, Done done) = 0;
};

// This process among those that run the same program. A plain value.
struct Workers {
  int64_t worker = 0;
  std::vector<std::string> addresses;  // Of all, by number: host and port.
  std::chrono::nanoseconds limit{0};   // For how long one waits for another.
  std::shared_ptr<Network> network;

  int64_t count() const { return static_cast<int64_t>(addresses.size()); }

  // For messages.
  std::string Name(int64_t number) const { return "worker " + std::to_string(number) + " (" + addresses[number] + ")"; }
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_NETWORK_H_
