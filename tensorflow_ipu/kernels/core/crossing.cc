#include "tensorflow_ipu/kernels/core/crossing.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "tensorflow_ipu/kernels/core/executor.h"
#include "tensorflow_ipu/kernels/core/metrics.h"
#include "tensorflow_ipu/kernels/core/tuning.h"

namespace tensorflow_ipu::core {

namespace {

std::atomic<std::size_t> bundle_bytes{0};

}  // namespace

void SetBundleBytes(std::size_t bytes) { bundle_bytes = bytes; }

std::size_t BundleBytes() {
  const std::size_t bytes = bundle_bytes;
  return bytes == 0 ? kBundleBytes : bytes;
}

Crossing::Crossing(std::string name, std::string key, Parcels parcels, std::shared_ptr<Network> network,
                   std::shared_ptr<Network::Calls> calls)
    : name_(std::move(name)),
      key_(std::move(key)),
      parcels_(std::move(parcels)),
      network_(std::move(network)),
      calls_(std::move(calls)),
      bundles_(parcels_.Cut(BundleBytes())),
      awaited_(parcels_.shares()) {}

void Crossing::Start(std::function<void(Outcome)> done, std::function<void(int64_t, Outcome)> lost) {
  done_ = std::move(done);
  lost_ = std::move(lost);
  Count(&Metrics::Global().crossings);
  if (bundles_.empty()) return done_(Outcome::Ok());
  for (std::size_t i = 0; i < std::min(bundles_.size(), kBundlesInFlight); ++i) Next();
}

// Begins the next bundle, if there is one.
void Crossing::Next() {
  const auto flight = std::make_shared<Flight>();
  {
    const Lock lock(mutex_);
    if (begun_ == bundles_.size()) return;
    flight->bundle = begun_++;
  }
  if (!BeginWork()) return;
  Begin(flight);
  EndWork();
}

void Crossing::Begin(const std::shared_ptr<Flight>& flight) {
  const Bundle& bundle = bundles_[flight->bundle];
  const std::size_t own = parcels_.own();
  std::vector<std::shared_ptr<const Message>> to_send(parcels_.shares());
  std::vector<std::size_t> to_receive(parcels_.shares());
  flight->own = std::make_shared<Message>(parcels_.Bytes(bundle, own, own));
  if (flight->own->bytes() > 0) parcels_.Pack(bundle, own, flight->own->data());
  flight->halves = parcels_.InHalves() && parcels_.shares() > 2 && flight->own->bytes() >= kHalvedBytes;
  for (std::size_t share = 0; share < parcels_.shares(); ++share) {
    if (share == own) continue;
    if (flight->halves) {
      const auto part = std::make_shared<Message>(parcels_.PartBytes(bundle, share));
      parcels_.PackPart(bundle, share, flight->own->data(), part->data());
      to_send[share] = part;
      to_receive[share] = parcels_.PartBytes(bundle, own);
      continue;
    }
    to_receive[share] = parcels_.Bytes(bundle, share, own);
    const std::size_t bytes = parcels_.Bytes(bundle, own, share);
    if (bytes == 0) continue;
    if (parcels_.SameForAll()) {
      to_send[share] = flight->own;
    } else {
      const auto message = std::make_shared<Message>(bytes);
      parcels_.Pack(bundle, share, message->data());
      to_send[share] = message;
    }
  }
  if (flight->halves) {
    const auto part = std::make_shared<Message>(parcels_.PartBytes(bundle, own));
    parcels_.PackPart(bundle, own, flight->own->data(), part->data());
    flight->own = part;
  }
  Exchange(flight, std::move(to_send), to_receive);
}

void Crossing::BeginSecondHalf(const std::shared_ptr<Flight>& flight) {
  const Bundle& bundle = bundles_[flight->bundle];
  const auto reduced = std::make_shared<Message>(parcels_.ReducedBytes(bundle, parcels_.own()));
  parcels_.ReducePart(bundle, Received(*flight), reduced->data());
  flight->second = true;
  flight->own = reduced;
  std::vector<std::shared_ptr<const Message>> to_send(parcels_.shares(), reduced);
  std::vector<std::size_t> to_receive(parcels_.shares());
  to_send[parcels_.own()] = nullptr;
  for (std::size_t share = 0; share < parcels_.shares(); ++share) {
    if (share != parcels_.own()) to_receive[share] = parcels_.ReducedBytes(bundle, share);
  }
  Exchange(flight, std::move(to_send), to_receive);
}

// Sends and receives what is not null, and not 0 bytes.
void Crossing::Exchange(const std::shared_ptr<Flight>& flight, std::vector<std::shared_ptr<const Message>> to_send,
                        const std::vector<std::size_t>& to_receive) {
  const std::size_t shares = parcels_.shares();
  flight->received.assign(shares, nullptr);
  for (std::size_t share = 0; share < shares; ++share) {
    if (to_receive[share] > 0) flight->received[share] = std::make_shared<Message>(to_receive[share]);
    if (to_send[share] != nullptr && to_send[share]->bytes() == 0) to_send[share] = nullptr;
  }
  const std::vector<std::shared_ptr<Message>> received = flight->received;
  {
    const Lock lock(mutex_);
    ++flight->pending;  // This thread's, until all calls are made.
    for (std::size_t share = 0; share < shares; ++share) {
      const int64_t calls = (to_send[share] == nullptr ? 0 : 1) + (received[share] == nullptr ? 0 : 1);
      awaited_[share] += calls;
      flight->pending += calls;
    }
  }
  const std::string own_key = KeyOf(*flight, parcels_.worker(parcels_.own()));
  for (std::size_t share = 0; share < shares; ++share) {
    const auto called = [self = shared_from_this(), flight, share](Outcome outcome) {
      self->Called(flight, share, std::move(outcome));
    };
    const int64_t worker = parcels_.worker(share);
    if (to_send[share] != nullptr) {
      Count(&Metrics::Global().crossing_bytes, static_cast<int64_t>(to_send[share]->bytes()));
      network_->Send(calls_, worker, own_key, std::move(to_send[share]), called);
    }
    if (received[share] != nullptr) {
      network_->Receive(calls_, worker, KeyOf(*flight, worker), received[share], called);
    }
  }
  bool last = false;
  {
    const Lock lock(mutex_);
    last = --flight->pending == 0 && !failed_;
  }
  if (last) Land(flight);
}

void Crossing::Called(const std::shared_ptr<Flight>& flight, std::size_t share, Outcome outcome) {
  if (!outcome.ok()) return lost_(parcels_.worker(share), std::move(outcome));
  {
    const Lock lock(mutex_);
    --awaited_[share];
    if (--flight->pending > 0 || failed_) return;
  }
  Land(flight);
}

// All messages of a half have come and gone.
void Crossing::Land(const std::shared_ptr<Flight>& flight) {
  Executor::Global().Run([self = shared_from_this(), flight](const Outcome& started) {
    if (!started.ok()) return self->Fail(started);
    if (!self->BeginWork()) return;
    self->Advance(flight);
    self->EndWork();
  });
}

void Crossing::Advance(const std::shared_ptr<Flight>& flight) {
  if (flight->halves && !flight->second) return BeginSecondHalf(flight);
  const Bundle& bundle = bundles_[flight->bundle];
  if (flight->halves) {
    parcels_.UnpackParts(bundle, Received(*flight));
  } else {
    parcels_.Unpack(bundle, Received(*flight));
  }
  flight->received.clear();
  flight->own = nullptr;
  bool last = false;
  {
    const Lock lock(mutex_);
    last = ++landed_ == bundles_.size() && !failed_;
    if (last) delivered_ = true;
  }
  if (last) return done_(Outcome::Ok());
  Next();
}

std::vector<const std::byte*> Crossing::Received(const Flight& flight) const {
  std::vector<const std::byte*> messages(parcels_.shares());
  for (std::size_t share = 0; share < messages.size(); ++share) {
    const Message* const message = share == parcels_.own() ? flight.own.get() : flight.received[share].get();
    if (message != nullptr) messages[share] = message->data();
  }
  return messages;
}

std::string Crossing::KeyOf(const Flight& flight, int64_t from) const {
  return key_ + ":" + std::to_string(flight.bundle) + (flight.second ? "b:" : "a:") + std::to_string(from);
}

bool Crossing::BeginWork() {
  const Lock lock(mutex_);
  if (failed_) return false;
  ++working_;
  return true;
}

void Crossing::EndWork() {
  Outcome why;
  {
    const Lock lock(mutex_);
    if (--working_ > 0 || !failed_ || delivered_) return;
    delivered_ = true;
    why = failure_;
  }
  DeliverFailure(std::move(why));
}

void Crossing::Fail(Outcome why) {
  {
    const Lock lock(mutex_);
    if (failed_ || delivered_) return;
    failed_ = true;
    failure_ = why;
    if (working_ > 0) return;  // The last of these threads delivers it.
    delivered_ = true;
  }
  DeliverFailure(std::move(why));
}

// On another thread: the caller may hold locks, and what waits for the crossing may run on for long.
void Crossing::DeliverFailure(Outcome why) {
  Executor::Global().Run([self = shared_from_this(), why = std::move(why)](const Outcome&) { self->done_(why); });
}

std::vector<int64_t> Crossing::Awaited() const {
  const Lock lock(mutex_);
  std::vector<int64_t> workers;
  for (std::size_t share = 0; share < awaited_.size(); ++share) {
    if (awaited_[share] > 0) workers.push_back(parcels_.worker(share));
  }
  return workers;
}

}  // namespace tensorflow_ipu::core
