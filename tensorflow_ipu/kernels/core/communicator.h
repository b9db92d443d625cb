// The messages that the processes of several workers send each other.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "tensorflow_ipu/kernels/core/status.h"

namespace tensorflow_ipu::core {

class Message {
 public:
  // The alignment of tensors.
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

// A key is unique among the messages in flight between two workers. The sender keeps a message until the receiver asks
// for it. Thread-safe. `done` is called once per call, on any thread, and must be short; the caller holds no lock that
// it takes.
class Communicator {
 public:
  using Done = std::function<void(Status)>;

  // Calls that are cancelled together.
  class Calls {
   public:
    virtual ~Calls() = default;

    // Cancels open calls and later ones.
    virtual void Cancel() = 0;
  };

  virtual ~Communicator() = default;

  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;

  virtual std::shared_ptr<Calls> NewCalls() = 0;

  // Calls `done` when the worker has taken the message. `done` is null if nobody waits for that, as for a report that
  // the worker may never ask for.
  virtual void Send(const std::shared_ptr<Calls>& calls, int64_t to, const std::string& key,
                    std::shared_ptr<const Message> message, Done done) = 0;

  // Calls `done` when `message` is filled. kUnavailable: the process is gone. kInvalidArgument: the size differs.
  virtual void Receive(const std::shared_ptr<Calls>& calls, int64_t from, const std::string& key,
                       std::shared_ptr<Message> message, Done done) = 0;

  // Ends the processes of all workers, this one with the status `code`.
  virtual void Abort(int code) = 0;
};

// This process among those that run the same program.
struct Workers {
  std::vector<std::string> names;     // By worker: its process and host, in words.
  std::chrono::nanoseconds limit{0};  // For waits for other workers.
  std::shared_ptr<Communicator> communicator;

  int64_t worker() const { return communicator->rank(); }
  int64_t count() const { return communicator->size(); }

  std::string Name(int64_t number) const { return "worker " + std::to_string(number) + " (" + names[number] + ")"; }
};

}  // namespace tensorflow_ipu::core
