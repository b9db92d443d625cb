// What workers tell each other of their runs.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_REPORTS_H_
#define TENSORFLOW_IPU_KERNELS_CORE_REPORTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tensorflow_ipu/kernels/core/network.h"
#include "tensorflow_ipu/kernels/core/outcome.h"

namespace tensorflow_ipu::core {

// A program, as far as its workers have to agree.
struct Program {
  std::string name;
  std::vector<std::string> collectives;  // Those that span workers, in the order of the trace.
  int64_t replicas = 0;                  // Of this worker; 0: an exchange of the host.
  int64_t chunk_bytes = 0;

  static Program OfExchange(const std::string& words, int64_t chunk_bytes) { return {"", {words}, 0, chunk_bytes}; }
  bool IsExchange() const { return replicas == 0; }

  std::string Text() const;
  static Program OfText(const std::string& text);

  // Equal for programs on which workers agree. Without the name: workers may have traced a function unequally often.
  uint64_t Digest() const;
};

// How the programs differ, if they do.
std::optional<std::string> Difference(const Program& ours, const Program& theirs, const std::string& worker);

// The first message.
struct Greeting {
  uint64_t digest;
  uint64_t text_bytes;
};

// How a worker's part of a run ended.
struct Report {
  static constexpr std::size_t kWords = 1000;

  int64_t code;
  int64_t crossed;  // Collectives that it took part in.
  char words[kWords];

  static Report Of(const Outcome& how, int64_t crossed);
};

// What a worker exchanges with all others outside of programs.
struct ExchangeNotice {
  static constexpr std::size_t kWords = 400;

  char words[kWords];

  static ExchangeNotice Of(const std::string& words);

  // Exchanges of the host are numbered alike on all workers. The name of the run keeps messages from a run that has
  // ended.
  static std::string Key(const std::string& run, int64_t number);
};

template <typename T>
std::shared_ptr<Message> MessageOf(const T& value);
template <typename T>
T ValueOf(const Message& message);

std::shared_ptr<Message> MessageOfText(const std::string& text);
std::string TextOf(const Message& message);

template <typename T>
std::shared_ptr<Message> MessageOf(const T& value) {
  return MessageOfText(std::string(reinterpret_cast<const char*>(&value), sizeof(value)));
}

template <typename T>
T ValueOf(const Message& message) {
  T value;
  TextOf(message).copy(reinterpret_cast<char*>(&value), sizeof(value));
  return value;
}

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_REPORTS_H_
