// The messages that the processes of several workers send each other.
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

// The digest of a text, by FNV-1a with two offsets: equal digests of two texts are less likely than a failure of the
// machine.
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

// A key is unique among the messages in flight between two workers. The sender keeps a message until the receiver asks
// for it. Thread-safe. `done` is called once per call, on any thread, and must be short; the caller holds no lock that
// it takes.
class Communicator {
 public:
  using Done = std::function<void(absl::Status)>;
  // Answers a question of another worker by a message of so many bytes. It is short, may be called on any thread, and
  // takes no lock under which the communicator is called.
  using Answer = std::function<std::shared_ptr<const Message>(const Key& question, std::size_t bytes)>;

  // The most bytes of a message: MPI counts by `int`.
  static constexpr std::size_t kMostBytes = std::size_t{1} << 30;

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

  // Calls `done` when the worker has taken the message.
  virtual void Send(const std::shared_ptr<Calls>& calls, int64_t to, const Key& key,
                    std::shared_ptr<const Message> message, Done done) = 0;

  // Calls `done` when `message` is filled. kUnavailable: the process is gone. kInvalidArgument: the size differs.
  virtual void Receive(const std::shared_ptr<Calls>& calls, int64_t from, const Key& key,
                       std::shared_ptr<Message> message, Done done) = 0;

  // Calls `done` when `answer` is filled with what the worker answers, as it does at any time.
  virtual void Ask(const std::shared_ptr<Calls>& calls, int64_t of, const Key& question,
                   std::shared_ptr<Message> answer, Done done) = 0;
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
