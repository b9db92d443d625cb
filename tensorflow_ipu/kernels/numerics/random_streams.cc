#include "tensorflow_ipu/kernels/numerics/random_streams.h"

#include <random>

#include "absl/synchronization/mutex.h"

namespace tensorflow_ipu::core {

namespace {

uint64_t Entropy() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

// The finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
uint64_t Mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;
constexpr uint64_t kRounding = 0x726f756e64696e67ull;  // Separates the keys of roundings from the keys of streams.

}  // namespace

RandomStreams::RandomStreams() : seed_(Entropy()) {}

void RandomStreams::Reset(uint64_t seed, bool identical) {
  const absl::MutexLock lock(&mutex_);
  seed_ = seed;
  identical_ = identical;
  counts_.clear();
  runs_.clear();
}

void RandomStreams::Forget() { Reset(Entropy(), false); }

RandomSeed RandomStreams::Draw(int64_t replica) {
  const absl::MutexLock lock(&mutex_);
  if (replica >= static_cast<int64_t>(counts_.size())) counts_.resize(replica + 1);
  const uint64_t stream = identical_ ? 0 : static_cast<uint64_t>(replica);
  return {static_cast<int64_t>(Mixed(Mixed(seed_) + kGolden * (stream + 1))), counts_[replica]++};
}

uint64_t RandomStreams::DrawRounding(int64_t replica, uint64_t* shared) {
  const absl::MutexLock lock(&mutex_);
  if (replica >= static_cast<int64_t>(runs_.size())) runs_.resize(replica + 1);
  const uint64_t run = Mixed(Mixed(seed_ ^ kRounding) + kGolden * static_cast<uint64_t>(++runs_[replica]));
  *shared = Mixed(run);
  return identical_ ? *shared : Mixed(run + kGolden * static_cast<uint64_t>(replica + 1));
}

}  // namespace tensorflow_ipu::core
