// An interface for messages between the processes of several workers.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tensorflow_ipu::core {

class Message {
 public:
  // Tensors have this alignment.
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

// A 128-bit digest of a text: FNV-1a with two offsets. A collision of two texts is less likely than a hardware failure.
struct Key {
  std::array<uint64_t, 2> digest{};

  Key() = default;
  Key(const char* text) : Key(std::string(text)) {}
  Key(const std::string& text) : digest{0xcbf29ce484222325ull, 0x6c62272e07bb0142ull} {
    for (const char letter : text) {
      for (uint64_t& half : digest) half = (half ^ static_cast<unsigned char>(letter)) * 0x100000001b3ull;
      digest[1] = (digest[1] << 7) | (digest[1] >> 57);
    }
  }
  bool operator<(const Key& other) const { return digest < other.digest; }
  bool operator==(const Key& other) const { return digest == other.digest; }
};

// Sends messages between workers. Thread-safe.
//
// A key must be unique among the messages in flight between two workers. The sender keeps a message until the receiver
// requests it. `done` is called once per call, on any thread, so it must return quickly. The caller must hold no lock
// that `done` acquires.
class Communicator {
 public:
  using Done = std::function<void(absl::Status)>;
  // Returns the answer to another worker's question, a message of `bytes` bytes. It must return quickly, may be called
  // on any thread, and must not acquire a lock that is held while the communicator is called.
  using Answer = std::function<std::shared_ptr<const Message>(const Key& question, std::size_t bytes)>;

  // The maximum size of a message: MPI counts bytes with an `int`.
  static constexpr std::size_t kMostBytes = std::size_t{1} << 30;

  // A set of calls that are cancelled together.
  class Calls {
   public:
    virtual ~Calls() = default;

    // Cancels all open calls, and all calls that are made later.
    virtual void Cancel() = 0;
  };

  virtual ~Communicator() = default;

  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;

  virtual std::shared_ptr<Calls> NewCalls() = 0;

  // Calls `done` when the other worker has received the message.
  virtual void Send(const std::shared_ptr<Calls>& calls, int64_t to, const Key& key,
                    std::shared_ptr<const Message> message, Done done) = 0;

  // Calls `done` when `message` is filled. The status is kUnavailable if the other process has died, and
  // kInvalidArgument if the sizes differ.
  virtual void Receive(const std::shared_ptr<Calls>& calls, int64_t from, const Key& key,
                       std::shared_ptr<Message> message, Done done) = 0;

  // Calls `done` when `answer` is filled with the other worker's answer. The other worker answers at once, whatever its
  // programs do.
  virtual void Ask(const std::shared_ptr<Calls>& calls, int64_t of, const Key& question,
                   std::shared_ptr<Message> answer, Done done) = 0;
};

// The processes that run the same program as this one.
struct Workers {
  std::vector<std::string> names;     // By worker: a description of its process and host.
  std::chrono::nanoseconds limit{0};  // Limits each wait for another worker. 0: no limit.
  std::shared_ptr<Communicator> communicator;

  int64_t worker() const { return communicator->rank(); }
  int64_t count() const { return communicator->size(); }

  std::string Name(int64_t number) const { return "worker " + std::to_string(number) + " (" + names[number] + ")"; }
};

}  // namespace tensorflow_ipu::core
