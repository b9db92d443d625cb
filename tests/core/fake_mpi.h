// An MPI library whose processes are objects of this process. A handle of a communicator represents one rank of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow_ipu/kernels/collectives/mpi_communicator.h"

namespace check {

using tensorflow_ipu::core::Communicator;
using tensorflow_ipu::core::MpiCommunicator;
using tensorflow_ipu::core::MpiJoin;
using tensorflow_ipu::core::MpiLibrary;

// Messages are delivered in the order of their calls. A send completes when the message was received, as for large
// messages.
class FakeMpi {
 public:
  static constexpr int kFailure = 15;

  struct Request {
    bool is_send;
    int from;  // -1: any.
    int to;
    int tag;
    char* data;
    int bytes;
    bool done = false;
  };
  struct Member {
    FakeMpi* world;
    int rank;
  };

  explicit FakeMpi(int size) : size_(size) {
    for (int rank = 0; rank < size; ++rank) members_.push_back({this, rank});
  }

  // Returns the library as seen by the process of this rank.
  MpiLibrary Of(int rank) {
    MpiLibrary mpi;
    mpi.world = reinterpret_cast<MpiLibrary::Handle>(&members_[static_cast<std::size_t>(rank)]);
    mpi.Error_string = [](int, char* text, int*) { return std::strcpy(text, "a lost process"), 0; };
    mpi.Comm_rank = [](MpiLibrary::Handle of, int* rank) { return *rank = MemberOf(of).rank, 0; };
    mpi.Comm_size = [](MpiLibrary::Handle of, int* size) { return *size = MemberOf(of).world->size_, 0; };
    mpi.Comm_set_errhandler = [](MpiLibrary::Handle, MpiLibrary::Handle) { return 0; };
    mpi.Comm_idup = [](MpiLibrary::Handle of, MpiLibrary::Handle* duplicate, MpiLibrary::Handle* request) {
      *duplicate = of;
      return MemberOf(of).world->EndAtOnce(request);
    };
    mpi.Isend = [](const void* data, int bytes, MpiLibrary::Handle, int to, int tag, MpiLibrary::Handle of,
                   MpiLibrary::Handle* request) {
      const Member& own = MemberOf(of);
      return own.world->Add({true, own.rank, to, tag, static_cast<char*>(const_cast<void*>(data)), bytes}, request);
    };
    mpi.Irecv = [](void* data, int bytes, MpiLibrary::Handle, int from, int tag, MpiLibrary::Handle of,
                   MpiLibrary::Handle* request) {
      const Member& own = MemberOf(of);
      return own.world->Add({false, from, own.rank, tag, static_cast<char*>(data), bytes}, request);
    };
    mpi.Ibarrier = [](MpiLibrary::Handle of, MpiLibrary::Handle* request) {
      return MemberOf(of).world->EndAtOnce(request);
    };
    mpi.Ibcast = [](void* data, int bytes, MpiLibrary::Handle, int root, MpiLibrary::Handle of,
                    MpiLibrary::Handle* request) {
      const Member& own = MemberOf(of);
      if (own.rank != root)
        return own.world->Add({false, root, own.rank, -1, static_cast<char*>(data), bytes}, request);
      for (int to = 0; to < own.world->size_; ++to) {
        if (to != root) own.world->Add({true, root, to, -1, static_cast<char*>(data), bytes}, request);
      }
      return own.world->EndAtOnce(request);
    };
    mpi.Test = [](MpiLibrary::Handle* request, int* done, MpiLibrary::StatusBytes*) {
      return Use(request, done, false);
    };
    mpi.Cancel = [](MpiLibrary::Handle* request) {
      int ignored = 0;
      return Use(request, &ignored, true);
    };
    return mpi;
  }

  // Makes all later calls of tests fail.
  void Break() {
    const std::lock_guard<std::mutex> lock(mutex_);
    broken_ = true;
  }

  // Returns the number of requests that are not done.
  std::size_t open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return pending_.size();
  }

 private:
  struct Handle {
    FakeMpi* world;
    std::shared_ptr<Request> request;
  };

  static Member& MemberOf(MpiLibrary::Handle handle) { return *reinterpret_cast<Member*>(handle); }

  MpiLibrary::Handle HandleOf(std::shared_ptr<Request> request) {
    handles_.push_back({this, std::move(request)});
    return reinterpret_cast<MpiLibrary::Handle>(&handles_.back());
  }

  int EndAtOnce(MpiLibrary::Handle* request) {
    Request done{};
    done.done = true;
    const std::lock_guard<std::mutex> lock(mutex_);
    *request = HandleOf(std::make_shared<Request>(done));
    return 0;
  }

  int Add(const Request& added, MpiLibrary::Handle* handle) {
    const auto request = std::make_shared<Request>(added);
    const std::lock_guard<std::mutex> lock(mutex_);
    *handle = HandleOf(request);
    for (auto other = pending_.begin(); other != pending_.end(); ++other) {
      Request& send = request->is_send ? *request : **other;
      Request& receive = request->is_send ? **other : *request;
      if ((*other)->is_send == request->is_send || send.to != receive.to || send.tag != receive.tag) continue;
      if (receive.from != -1 && receive.from != send.from) continue;
      if (send.bytes > 0) std::memcpy(receive.data, send.data, static_cast<std::size_t>(send.bytes));
      send.done = receive.done = true;
      pending_.erase(other);
      return 0;
    }
    pending_.push_back(request);
    return 0;
  }

  static int Use(MpiLibrary::Handle* handle, int* done, bool cancels) {
    auto* const found = reinterpret_cast<Handle*>(*handle);
    *done = 1;
    if (found == nullptr) return 0;
    FakeMpi& world = *found->world;
    const std::lock_guard<std::mutex> lock(world.mutex_);
    if (cancels) {
      world.pending_.remove(found->request);
      found->request->done = true;
      return 0;
    }
    if (world.broken_) return kFailure;
    *done = found->request->done ? 1 : 0;
    if (*done == 0) return 0;
    *handle = 0;
    return 0;
  }

  const int size_;
  std::vector<Member> members_;
  std::mutex mutex_;
  std::list<std::shared_ptr<Request>> pending_;
  std::list<Handle> handles_;  // Kept, since processes may end with open requests.
  bool broken_ = false;
};

// Returns the communicators of all ranks, after they have joined.
inline std::vector<std::shared_ptr<MpiCommunicator>> JoinedCommunicators(
    FakeMpi& world, const std::vector<Communicator::Answer>& answers) {
  std::vector<std::unique_ptr<MpiJoin>> joins(answers.size());
  for (std::size_t rank = 0; rank < joins.size(); ++rank) {
    const MpiLibrary library = world.Of(static_cast<int>(rank));
    const absl::Status status = MpiJoin::Begin(library, library.world, "process " + std::to_string(rank), &joins[rank]);
    if (!status.ok()) return {};
  }
  std::vector<std::shared_ptr<MpiCommunicator>> communicators;
  for (std::size_t joined_ranks = 0; joined_ranks < joins.size();) {
    joined_ranks = 0;
    for (const auto& join : joins) {
      bool joined = false;
      if (!join->Advance(&joined).ok()) return {};
      joined_ranks += joined ? 1 : 0;
    }
  }
  for (std::size_t rank = 0; rank < joins.size(); ++rank) {
    absl::Status status;
    communicators.push_back(MpiCommunicator::Make(*joins[rank], answers[rank], &status));
  }
  return communicators;
}

}  // namespace check
