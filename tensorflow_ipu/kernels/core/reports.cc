#include "tensorflow_ipu/kernels/core/reports.h"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <utility>

namespace tensorflow_ipu::core {

namespace {

std::string Counted(std::size_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace

std::string Program::Text() const {
  std::string text = std::to_string(replicas) + "\n" + std::to_string(chunk_bytes) + "\n" + name;
  for (const std::string& collective : collectives) text += "\n" + collective;
  return text;
}

Program Program::OfText(const std::string& text) {
  Program program;
  std::istringstream lines(text);
  std::string line;
  if (std::getline(lines, line)) program.replicas = std::atoll(line.c_str());
  if (std::getline(lines, line)) program.chunk_bytes = std::atoll(line.c_str());
  std::getline(lines, program.name);
  while (std::getline(lines, line)) program.collectives.push_back(line);
  return program;
}

// FNV-1a.
uint64_t Program::Digest() const {
  Program nameless = *this;
  nameless.name.clear();
  uint64_t digest = 0xcbf29ce484222325ull;
  for (const char letter : nameless.Text()) {
    digest = (digest ^ static_cast<unsigned char>(letter)) * 0x100000001b3ull;
  }
  return digest;
}

std::optional<std::string> Difference(const Program& ours, const Program& theirs, const std::string& worker) {
  if (ours.replicas != theirs.replicas) {
    return worker + " has " + Counted(static_cast<std::size_t>(theirs.replicas), "replica") +
           " of the program, and this worker has " + std::to_string(ours.replicas) +
           ". Configure as many IPUs on all workers.";
  }
  if (ours.chunk_bytes != theirs.chunk_bytes) {
    return worker + " sends chunks of up to " + std::to_string(theirs.chunk_bytes) + " bytes, and this worker " +
           std::to_string(ours.chunk_bytes) +
           ". Set `optimizations.maximum_cross_replica_sum_buffer_size` alike on all workers.";
  }
  const std::size_t both = std::min(ours.collectives.size(), theirs.collectives.size());
  for (std::size_t i = 0; i < both; ++i) {
    if (ours.collectives[i] == theirs.collectives[i]) continue;
    if (ours.IsExchange()) {
      return worker + " exchanges " + theirs.collectives[i] + ", and this worker " + ours.collectives[i] +
             ". Have all workers exchange tensors of the same types and shapes, in the same order.";
    }
    return worker + " runs another program: collective " + std::to_string(i + 1) + " of its `" + theirs.name + "` is " +
           theirs.collectives[i] + ", and of `" + ours.name + "` on this worker it is " + ours.collectives[i] +
           ". Run the same program on all workers.";
  }
  if (ours.collectives.size() != theirs.collectives.size()) {
    return worker + " runs another program: its `" + theirs.name + "` has " +
           Counted(theirs.collectives.size(), "collective") + ", and `" + ours.name + "` on this worker has " +
           std::to_string(ours.collectives.size()) + ". Run the same program on all workers.";
  }
  return std::nullopt;
}

Report Report::Of(const Outcome& how, int64_t crossed) {
  Report report{static_cast<int64_t>(how.code), crossed, {}};
  how.message.copy(report.words, kWords - 1);
  return report;
}

ExchangeNotice ExchangeNotice::Of(const std::string& words) {
  ExchangeNotice exchange{};
  words.copy(exchange.words, kWords - 1);
  return exchange;
}

std::string ExchangeNotice::Key(const std::string& run, int64_t number) {
  return run + ":host:" + std::to_string(number);
}

std::shared_ptr<Message> MessageOfText(const std::string& text) {
  auto message = std::make_shared<Message>(text.size());
  std::memcpy(message->data(), text.data(), text.size());
  return message;
}

std::string TextOf(const Message& message) {
  return std::string(reinterpret_cast<const char*>(message.data()), message.bytes());
}

}  // namespace tensorflow_ipu::core
