#include "tensorflow_ipu/kernels/core/cross_host_collective.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "tensorflow_ipu/kernels/core/metrics.h"
#include "tensorflow_ipu/kernels/core/threads.h"
#include "tensorflow_ipu/kernels/core/tuning.h"

namespace tensorflow_ipu::core {

namespace {

std::atomic<std::size_t> chunk_bytes{0};

const Counter crossings("Crossings"), crossing_bytes("CrossingBytes");

}  // namespace

void SetChunkBytes(std::size_t bytes) { chunk_bytes = bytes; }

std::size_t ChunkBytes() {
  const std::size_t bytes = chunk_bytes;
  return bytes == 0 ? kChunkBytes : bytes;
}

CrossHostCollective::CrossHostCollective(std::string name, std::string key, Packer packer,
                                         std::shared_ptr<Communicator> communicator,
                                         std::shared_ptr<Communicator::Calls> calls)
    : name_(std::move(name)),
      key_(std::move(key)),
      packer_(std::move(packer)),
      communicator_(std::move(communicator)),
      calls_(std::move(calls)),
      chunks_(packer_.Cut(ChunkBytes())),
      awaited_(packer_.shares()) {}

void CrossHostCollective::Start(std::function<void(Status)> done, std::function<void(int64_t, Status)> lost) {
  done_ = std::move(done);
  lost_ = std::move(lost);
  crossings.Add();
  if (chunks_.empty()) return done_(Status::Ok());
  for (std::size_t i = 0; i < std::min(chunks_.size(), kChunksInFlight); ++i) Next();
}

void CrossHostCollective::Next() {
  const auto in_flight = std::make_shared<InFlightChunk>();
  {
    const Lock lock(mutex_);
    if (begun_ == chunks_.size()) return;
    in_flight->chunk = begun_++;
  }
  if (!BeginWork()) return;
  Begin(in_flight);
  EndWork();
}

void CrossHostCollective::Begin(const std::shared_ptr<InFlightChunk>& in_flight) {
  const Chunk& chunk = chunks_[in_flight->chunk];
  const std::size_t own = packer_.own();
  std::vector<std::shared_ptr<const Message>> to_send(packer_.shares());
  std::vector<std::size_t> to_receive(packer_.shares());
  in_flight->own = std::make_shared<Message>(packer_.Bytes(chunk, own, own));
  if (in_flight->own->bytes() > 0) packer_.Pack(chunk, own, in_flight->own->data());
  in_flight->halves = packer_.InHalves() && packer_.shares() > 2 && in_flight->own->bytes() >= kHalvedBytes;
  for (std::size_t share = 0; share < packer_.shares(); ++share) {
    if (share == own) continue;
    if (in_flight->halves) {
      const auto part = std::make_shared<Message>(packer_.PartBytes(chunk, share));
      packer_.PackPart(chunk, share, in_flight->own->data(), part->data());
      to_send[share] = part;
      to_receive[share] = packer_.PartBytes(chunk, own);
      continue;
    }
    to_receive[share] = packer_.Bytes(chunk, share, own);
    const std::size_t bytes = packer_.Bytes(chunk, own, share);
    if (bytes == 0) continue;
    if (packer_.SameForAll()) {
      to_send[share] = in_flight->own;
    } else {
      const auto message = std::make_shared<Message>(bytes);
      packer_.Pack(chunk, share, message->data());
      to_send[share] = message;
    }
  }
  if (in_flight->halves) {
    const auto part = std::make_shared<Message>(packer_.PartBytes(chunk, own));
    packer_.PackPart(chunk, own, in_flight->own->data(), part->data());
    in_flight->own = part;
  }
  Exchange(in_flight, std::move(to_send), to_receive);
}

void CrossHostCollective::BeginSecondHalf(const std::shared_ptr<InFlightChunk>& in_flight) {
  const Chunk& chunk = chunks_[in_flight->chunk];
  const auto reduced = std::make_shared<Message>(packer_.ReducedBytes(chunk, packer_.own()));
  packer_.ReducePart(chunk, Received(*in_flight), reduced->data());
  in_flight->second = true;
  in_flight->own = reduced;
  std::vector<std::shared_ptr<const Message>> to_send(packer_.shares(), reduced);
  std::vector<std::size_t> to_receive(packer_.shares());
  to_send[packer_.own()] = nullptr;
  for (std::size_t share = 0; share < packer_.shares(); ++share) {
    if (share != packer_.own()) to_receive[share] = packer_.ReducedBytes(chunk, share);
  }
  Exchange(in_flight, std::move(to_send), to_receive);
}

void CrossHostCollective::Exchange(const std::shared_ptr<InFlightChunk>& in_flight,
                                   std::vector<std::shared_ptr<const Message>> to_send,
                                   const std::vector<std::size_t>& to_receive) {
  const std::size_t shares = packer_.shares();
  in_flight->received.assign(shares, nullptr);
  for (std::size_t share = 0; share < shares; ++share) {
    if (to_receive[share] > 0) in_flight->received[share] = std::make_shared<Message>(to_receive[share]);
    if (to_send[share] != nullptr && to_send[share]->bytes() == 0) to_send[share] = nullptr;
  }
  const std::vector<std::shared_ptr<Message>> received = in_flight->received;
  {
    const Lock lock(mutex_);
    ++in_flight->pending;  // This thread's, until all calls are made.
    for (std::size_t share = 0; share < shares; ++share) {
      const int64_t calls = (to_send[share] == nullptr ? 0 : 1) + (received[share] == nullptr ? 0 : 1);
      awaited_[share] += calls;
      in_flight->pending += calls;
    }
  }
  const std::string own_key = KeyOf(*in_flight, packer_.worker(packer_.own()));
  for (std::size_t share = 0; share < shares; ++share) {
    const auto called = [self = shared_from_this(), in_flight, share](Status status) {
      self->Called(in_flight, share, std::move(status));
    };
    const int64_t worker = packer_.worker(share);
    if (to_send[share] != nullptr) {
      crossing_bytes.Add(static_cast<int64_t>(to_send[share]->bytes()));
      communicator_->Send(calls_, worker, own_key, std::move(to_send[share]), called);
    }
    if (received[share] != nullptr) {
      communicator_->Receive(calls_, worker, KeyOf(*in_flight, worker), received[share], called);
    }
  }
  bool last = false;
  {
    const Lock lock(mutex_);
    last = --in_flight->pending == 0 && !failed_;
  }
  if (last) Land(in_flight);
}

void CrossHostCollective::Called(const std::shared_ptr<InFlightChunk>& in_flight, std::size_t share, Status status) {
  if (!status.ok()) return lost_(packer_.worker(share), std::move(status));
  {
    const Lock lock(mutex_);
    --awaited_[share];
    if (--in_flight->pending > 0 || failed_) return;
  }
  Land(in_flight);
}

void CrossHostCollective::Land(const std::shared_ptr<InFlightChunk>& in_flight) {
  Executor::Global().Run([self = shared_from_this(), in_flight](const Status& started) {
    if (!started.ok()) return self->Fail(started);
    if (!self->BeginWork()) return;
    self->Advance(in_flight);
    self->EndWork();
  });
}

void CrossHostCollective::Advance(const std::shared_ptr<InFlightChunk>& in_flight) {
  if (in_flight->halves && !in_flight->second) return BeginSecondHalf(in_flight);
  const Chunk& chunk = chunks_[in_flight->chunk];
  if (in_flight->halves) {
    packer_.UnpackParts(chunk, Received(*in_flight));
  } else {
    packer_.Unpack(chunk, Received(*in_flight));
  }
  in_flight->received.clear();
  in_flight->own = nullptr;
  bool last = false;
  {
    const Lock lock(mutex_);
    last = ++landed_ == chunks_.size() && !failed_;
    if (last) completed_ = true;
  }
  if (last) return done_(Status::Ok());
  Next();
}

std::vector<const std::byte*> CrossHostCollective::Received(const InFlightChunk& in_flight) const {
  std::vector<const std::byte*> messages(packer_.shares());
  for (std::size_t share = 0; share < messages.size(); ++share) {
    const Message* const message = share == packer_.own() ? in_flight.own.get() : in_flight.received[share].get();
    if (message != nullptr) messages[share] = message->data();
  }
  return messages;
}

std::string CrossHostCollective::KeyOf(const InFlightChunk& in_flight, int64_t from) const {
  return key_ + ":" + std::to_string(in_flight.chunk) + (in_flight.second ? "b:" : "a:") + std::to_string(from);
}

bool CrossHostCollective::BeginWork() {
  const Lock lock(mutex_);
  if (failed_) return false;
  ++working_;
  return true;
}

void CrossHostCollective::EndWork() {
  Status why;
  {
    const Lock lock(mutex_);
    if (--working_ > 0 || !failed_ || completed_) return;
    completed_ = true;
    why = failure_;
  }
  CompleteWithFailure(std::move(why));
}

void CrossHostCollective::Fail(Status why) {
  {
    const Lock lock(mutex_);
    if (failed_ || completed_) return;
    failed_ = true;
    failure_ = why;
    if (working_ > 0) return;  // The last of these threads calls back.
    completed_ = true;
  }
  CompleteWithFailure(std::move(why));
}

// On another thread: the caller may hold locks, and `done_` may run for long.
void CrossHostCollective::CompleteWithFailure(Status why) {
  Executor::Global().Run([self = shared_from_this(), why = std::move(why)](const Status&) { self->done_(why); });
}

std::vector<int64_t> CrossHostCollective::Awaited() const {
  const Lock lock(mutex_);
  std::vector<int64_t> workers;
  for (std::size_t share = 0; share < awaited_.size(); ++share) {
    if (awaited_[share] > 0) workers.push_back(packer_.worker(share));
  }
  return workers;
}

}  // namespace tensorflow_ipu::core
