#include "tensorflow_ipu/kernels/collectives/cross_host_collective.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow_ipu/kernels/support/metrics.h"
#include "tensorflow_ipu/kernels/support/threads.h"
#include "tensorflow_ipu/kernels/support/tuning.h"

namespace tensorflow_ipu::core {

namespace {

const Counter crossings("Crossings"), crossing_bytes("CrossingBytes");

std::shared_ptr<Message> NewMessage(std::size_t bytes) {
  return bytes == 0 ? nullptr : std::make_shared<Message>(bytes);
}

}  // namespace

CrossHostCollective::CrossHostCollective(std::string name, std::string key, Exchange exchange,
                                         std::shared_ptr<Communicator> communicator,
                                         std::shared_ptr<Communicator::Calls> calls)
    : name_(std::move(name)),
      key_(std::move(key)),
      exchange_(std::move(exchange)),
      communicator_(std::move(communicator)),
      calls_(std::move(calls)),
      awaited_(exchange_.shares()) {}

void CrossHostCollective::Start(std::function<void(absl::Status)> done,
                                std::function<void(int64_t, absl::Status)> lost) {
  done_ = std::move(done);
  lost_ = std::move(lost);
  crossings.Add();
  if (exchange_.chunks() == 0) return done_(absl::OkStatus());
  for (int64_t i = 0; i < std::min(exchange_.chunks(), kChunksInFlight); ++i) BeginNextChunk();
}

void CrossHostCollective::BeginNextChunk() {
  const auto in_flight = std::make_shared<InFlightChunk>();
  {
    const absl::MutexLock lock(&mutex_);
    if (begun_ == exchange_.chunks()) return;
    in_flight->chunk = begun_++;
  }
  in_flight->halves = exchange_.InHalves({in_flight->chunk});
  in_flight->received.resize(exchange_.shares());
  if (!BeginWork()) return;
  Begin(in_flight);
  EndWork();
}

Chunk CrossHostCollective::PartOf(const InFlightChunk& in_flight, std::size_t share) const {
  if (!in_flight.halves) return {in_flight.chunk};
  return {in_flight.chunk, static_cast<int64_t>(share), static_cast<int64_t>(exchange_.shares()), in_flight.second};
}

void CrossHostCollective::Begin(const std::shared_ptr<InFlightChunk>& in_flight) {
  const std::size_t own = exchange_.own();
  const bool second = in_flight->second;
  const bool same = second || (exchange_.SameForAll() && !in_flight->halves);
  Messages to_send(exchange_.shares());
  std::shared_ptr<Message> packed;
  for (std::size_t share = 0; share < exchange_.shares(); ++share) {
    if (share == own && !exchange_.SendsItself()) continue;
    if (packed == nullptr || !same) {
      const Chunk part = PartOf(*in_flight, second ? own : share);
      packed = NewMessage(exchange_.Bytes(part, own, share));
      if (packed != nullptr) exchange_.Pack(part, share, packed->data());
    }
    to_send[share] = packed;
    if (share == own) continue;
    in_flight->received[share] = NewMessage(exchange_.Bytes(PartOf(*in_flight, second ? share : own), share, own));
  }
  Transfer(in_flight, std::move(to_send));
}

void CrossHostCollective::Transfer(const std::shared_ptr<InFlightChunk>& in_flight, Messages to_send) {
  const std::size_t own = exchange_.own();
  in_flight->received[own] = std::move(to_send[own]);
  Messages received = in_flight->received;  // A copy, since the last call may end the chunk.
  received[own] = nullptr;
  {
    const absl::MutexLock lock(&mutex_);
    ++in_flight->pending;  // Keeps the chunk open until this thread has made all calls.
    for (std::size_t share = 0; share < exchange_.shares(); ++share) {
      const int64_t calls = (to_send[share] == nullptr ? 0 : 1) + (received[share] == nullptr ? 0 : 1);
      awaited_[share] += calls;
      in_flight->pending += calls;
    }
  }
  const std::string own_key = KeyOf(*in_flight, exchange_.worker(own));
  for (std::size_t share = 0; share < exchange_.shares(); ++share) {
    const auto called = [self = shared_from_this(), in_flight, share](absl::Status status) {
      self->OnCallDone(in_flight, share, std::move(status));
    };
    const int64_t worker = exchange_.worker(share);
    if (to_send[share] != nullptr) {
      crossing_bytes.Add(static_cast<int64_t>(to_send[share]->bytes()));
      communicator_->Send(calls_, worker, own_key, std::move(to_send[share]), called);
    }
    if (received[share] != nullptr) {
      communicator_->Receive(calls_, worker, KeyOf(*in_flight, worker), std::move(received[share]), called);
    }
  }
  bool last = false;
  {
    const absl::MutexLock lock(&mutex_);
    last = --in_flight->pending == 0 && !failed_;
  }
  if (last) AdvanceLater(in_flight);
}

void CrossHostCollective::OnCallDone(const std::shared_ptr<InFlightChunk>& in_flight, std::size_t share,
                                     absl::Status status) {
  if (!status.ok()) return lost_(exchange_.worker(share), std::move(status));
  {
    const absl::MutexLock lock(&mutex_);
    --awaited_[share];
    if (--in_flight->pending > 0 || failed_) return;
  }
  AdvanceLater(in_flight);
}

void CrossHostCollective::AdvanceLater(const std::shared_ptr<InFlightChunk>& in_flight) {
  Executor::Global().Run([self = shared_from_this(), in_flight](const absl::Status& started) {
    if (!started.ok()) return self->Fail(started);
    if (!self->BeginWork()) return;
    self->Advance(in_flight);
    self->EndWork();
  });
}

void CrossHostCollective::Advance(const std::shared_ptr<InFlightChunk>& in_flight) {
  std::vector<const std::byte*> messages;
  for (const auto& message : in_flight->received) messages.push_back(message == nullptr ? nullptr : message->data());
  const Ranks destinations = exchange_.Destinations(exchange_.own());
  for (std::size_t share = 0; share < messages.size(); ++share) {
    if ((share == exchange_.own()) == in_flight->second) continue;
    exchange_.Unpack(PartOf(*in_flight, share), destinations, messages);
  }
  if (in_flight->halves && !in_flight->second) {
    in_flight->second = true;
    return Begin(in_flight);
  }
  in_flight->received.clear();
  bool last = false;
  {
    const absl::MutexLock lock(&mutex_);
    last = ++completed_chunks_ == exchange_.chunks() && !failed_;
    if (last) completed_ = true;
  }
  if (last) return done_(absl::OkStatus());
  BeginNextChunk();
}

std::string CrossHostCollective::KeyOf(const InFlightChunk& in_flight, int64_t from) const {
  return key_ + ":" + std::to_string(in_flight.chunk) + (in_flight.second ? "b:" : "a:") + std::to_string(from);
}

bool CrossHostCollective::BeginWork() {
  const absl::MutexLock lock(&mutex_);
  if (failed_) return false;
  ++working_;
  return true;
}

void CrossHostCollective::EndWork() {
  absl::Status why;
  {
    const absl::MutexLock lock(&mutex_);
    if (--working_ > 0 || !failed_ || completed_) return;
    completed_ = true;
    why = failure_;
  }
  CompleteWithFailure(std::move(why));
}

void CrossHostCollective::Fail(absl::Status why) {
  {
    const absl::MutexLock lock(&mutex_);
    if (failed_ || completed_) return;
    failed_ = true;
    failure_ = why;
    if (working_ > 0) return;  // The last of the working threads calls `done_`.
    completed_ = true;
  }
  CompleteWithFailure(std::move(why));
}

// Calls `done_` on another thread, because the caller may hold locks and `done_` may take long.
void CrossHostCollective::CompleteWithFailure(absl::Status why) {
  Executor::Global().Run([self = shared_from_this(), why = std::move(why)](const absl::Status&) { self->done_(why); });
}

std::vector<int64_t> CrossHostCollective::Awaited() const {
  const absl::MutexLock lock(&mutex_);
  std::vector<int64_t> workers;
  for (std::size_t share = 0; share < awaited_.size(); ++share) {
    if (awaited_[share] > 0) workers.push_back(exchange_.worker(share));
  }
  return workers;
}

}  // namespace tensorflow_ipu::core
