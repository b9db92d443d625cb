#include "tensorflow_ipu/kernels/core/mpi_communicator.h"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "tensorflow_ipu/kernels/core/threads.h"
#include "tensorflow_ipu/kernels/core/tuning.h"

namespace tensorflow_ipu::core {

namespace {

// MPI guarantees tags up to this one.
constexpr int32_t kLastTag = 32767;
// Tag 0 is for notes.
constexpr int32_t kNotes = 0;

}  // namespace

Status MpiJoin::Open(const MpiLibrary& library, MpiLibrary::Handle communicator, const std::string& name,
                     std::unique_ptr<MpiJoin>* join) {
  auto made = std::make_unique<MpiJoin>();
  made->library_ = library;
  made->original_ = communicator == 0 ? library.world : communicator;
  int initialized = 0;
  int finalized = 0;
  int level = 0;
  library.Initialized(&initialized);
  library.Finalized(&finalized);
  if (finalized != 0) return Status::FailedPrecondition("MPI was finalized in this process.");
  if (initialized == 0) {
    library.Init_thread(nullptr, nullptr, library.thread_multiple, &level);
    made->initialized_here_ = true;
  } else {
    library.Query_thread(&level);
  }
  if (level < library.thread_multiple) {
    return Status::FailedPrecondition(
        "MPI was initialized without support for several threads. Initialize it with `MPI_THREAD_MULTIPLE`, which is "
        "the default of mpi4py.");
  }
  library.Comm_rank(made->original_, &made->rank_);
  library.Comm_size(made->original_, &made->size_);
  Status status = made->Begin(name);
  if (status.ok()) *join = std::move(made);
  return status;
}

Status MpiJoin::Begin(const std::string& name) {
  table_.assign(static_cast<std::size_t>(size_) * kNameBytes, '\0');
  name.copy(table_.data() + static_cast<std::size_t>(rank_) * kNameBytes, kNameBytes - 1);
  const auto bytes = static_cast<int>(kNameBytes);
  if (rank_ > 0) {
    const char* const own = table_.data() + static_cast<std::size_t>(rank_) * kNameBytes;
    return library_.StatusOf(library_.Isend(own, bytes, library_.bytes, 0, kLastTag, original_, &requests_[0]),
                             "MPI_Isend");
  }
  for (int other = 1; other < size_; ++other) {
    char* const at = table_.data() + static_cast<std::size_t>(other) * kNameBytes;
    Status status = library_.StatusOf(
        library_.Irecv(at, bytes, library_.bytes, other, kLastTag, original_, &requests_[other]), "MPI_Irecv");
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

Status MpiJoin::TestAll(bool* done) {
  for (auto request = requests_.begin(); request != requests_.end();) {
    int completed = 0;
    MpiLibrary::StatusBytes ignored;
    Status status = library_.StatusOf(library_.Test(&request->second, &completed, &ignored), "MPI_Test");
    if (!status.ok()) return status;
    request = completed != 0 ? requests_.erase(request) : std::next(request);
  }
  *done = requests_.empty();
  return Status::Ok();
}

Status MpiJoin::Advance(bool* joined) {
  *joined = stage_ == Stage::kJoined;
  bool done = false;
  Status status = TestAll(&done);
  if (!status.ok() || !done) return status;
  const auto bytes = static_cast<int>(table_.size());
  switch (stage_) {
    case Stage::kNames:
      stage_ = Stage::kTable;
      if (rank_ > 0) {
        return library_.StatusOf(
            library_.Irecv(table_.data(), bytes, library_.bytes, 0, kLastTag, original_, &requests_[0]), "MPI_Irecv");
      }
      for (int other = 1; other < size_ && status.ok(); ++other) {
        status = library_.StatusOf(
            library_.Isend(table_.data(), bytes, library_.bytes, other, kLastTag, original_, &requests_[other]),
            "MPI_Isend");
      }
      return status;
    case Stage::kTable:
      stage_ = Stage::kDuplicate;
      for (int rank = 0; rank < size_; ++rank) {
        names_.emplace_back(table_.data() + static_cast<std::size_t>(rank) * kNameBytes);
      }
      return library_.StatusOf(library_.Comm_idup(original_, &duplicate_, &requests_[0]), "MPI_Comm_idup");
    case Stage::kDuplicate:
      stage_ = Stage::kJoined;
      *joined = true;
      return library_.StatusOf(library_.Comm_set_errhandler(duplicate_, library_.errors_return),
                               "MPI_Comm_set_errhandler");
    case Stage::kJoined:
      break;
  }
  return status;
}

std::vector<int> MpiJoin::Missing() const {
  std::vector<int> ranks;
  for (const auto& [rank, request] : requests_) ranks.push_back(rank);
  return ranks;
}

class MpiCommunicator::MpiCalls : public Calls {
 public:
  explicit MpiCalls(std::weak_ptr<MpiCommunicator> communicator) : communicator_(std::move(communicator)) {}

  void Cancel() override {
    cancelled_ = true;
    if (const auto communicator = communicator_.lock()) communicator->Cancel(this);
  }

  bool cancelled() const { return cancelled_; }

 private:
  const std::weak_ptr<MpiCommunicator> communicator_;
  std::atomic<bool> cancelled_{false};
};

std::shared_ptr<MpiCommunicator> MpiCommunicator::Make(const MpiJoin& join, Status* status) {
  const std::shared_ptr<MpiCommunicator> made(
      new MpiCommunicator(join.library(), join.communicator(), join.rank(), join.size()));
  {
    const Lock lock(made->mutex_);
    made->Listen();
  }
  *status = StartThread("ipu-mpi", [made] { made->Poll(); });
  return status->ok() ? made : nullptr;
}

std::shared_ptr<Communicator::Calls> MpiCommunicator::NewCalls() {
  return std::make_shared<MpiCalls>(weak_from_this());
}

// FNV-1a with two offsets: equal digests of two keys are less likely than a failure of the machine.
MpiCommunicator::Digest MpiCommunicator::DigestOf(const std::string& key) {
  Digest digest = {0xcbf29ce484222325ull, 0x6c62272e07bb0142ull};
  for (const char letter : key) {
    for (uint64_t& half : digest) half = (half ^ static_cast<unsigned char>(letter)) * 0x100000001b3ull;
    digest[1] = (digest[1] << 7) | (digest[1] >> 57);
  }
  return digest;
}

void MpiCommunicator::Send(const std::shared_ptr<Calls>& calls, int64_t to, const std::string& key,
                           std::shared_ptr<const Message> message, Done done) {
  std::vector<Ended> ended;
  {
    const Lock lock(mutex_);
    const Place place{to, DigestOf(key)};
    Offer offer{calls.get(), std::move(message), std::move(done)};
    const auto request = requests_.find(place);
    if (static_cast<MpiCalls&>(*calls).cancelled()) {
      ended.push_back({std::move(offer.done), Status::Cancelled("The message was cancelled.")});
    } else if (!failure_.ok()) {
      ended.push_back({std::move(offer.done), failure_});
    } else if (request == requests_.end()) {
      offers_.emplace(place, std::move(offer));
    } else {
      const Request asked = request->second;
      requests_.erase(request);
      Answer(place, asked, std::move(offer), ended);
    }
  }
  End(ended);
}

void MpiCommunicator::Receive(const std::shared_ptr<Calls>& calls, int64_t from, const std::string& key,
                              std::shared_ptr<Message> message, Done done) {
  std::vector<Ended> ended;
  {
    const Lock lock(mutex_);
    if (static_cast<MpiCalls&>(*calls).cancelled()) {
      ended.push_back({std::move(done), Status::Cancelled("The message was cancelled.")});
    } else if (!failure_.ok()) {
      ended.push_back({std::move(done), failure_});
    } else {
      do {
        last_tag_ = last_tag_ % (kLastTag - 1) + 1;
      } while (awaited_.count(last_tag_) > 0);
      const Place place{from, DigestOf(key)};
      Awaited& awaited = awaited_[last_tag_];
      awaited = {calls.get(), place, std::move(message), std::move(done), 0};
      Fail(mpi_.Irecv(awaited.message->data(), static_cast<int>(awaited.message->bytes()), mpi_.bytes,
                      static_cast<int>(from), last_tag_, communicator_, &awaited.request),
           "MPI_Irecv");
      Post(from, {Note::kAsk, last_tag_, rank_, place.second, awaited.message->bytes()});
      Progress(ended);  // The other worker may have asked meanwhile, and the thread may sleep.
    }
  }
  End(ended);
}

void MpiCommunicator::Post(int64_t to, const Note& note) {
  sent_.push_back({nullptr, std::make_unique<Note>(note), nullptr, 0});
  Fail(mpi_.Isend(sent_.back().note.get(), sizeof(Note), mpi_.bytes, static_cast<int>(to), kNotes, communicator_,
                  &sent_.back().request),
       "MPI_Isend");
  Wake();
}

void MpiCommunicator::SendData(int64_t to, int32_t tag, std::shared_ptr<const Message> message, Done done) {
  sent_.push_back({std::move(message), nullptr, std::move(done), 0});
  Sent& sent = sent_.back();
  Fail(mpi_.Isend(sent.message->data(), static_cast<int>(sent.message->bytes()), mpi_.bytes, static_cast<int>(to), tag,
                  communicator_, &sent.request),
       "MPI_Isend");
  Wake();
}

void MpiCommunicator::Answer(const Place& place, const Request& request, Offer offer, std::vector<Ended>& ended) {
  if (offer.message->bytes() == request.bytes) {
    return SendData(place.first, request.tag, std::move(offer.message), std::move(offer.done));
  }
  Post(place.first, {Note::kOtherSize, request.tag, rank_, place.second, offer.message->bytes()});
  ended.push_back({std::move(offer.done), Status::Ok()});
}

void MpiCommunicator::Listen() {
  listening_ = 0;
  Fail(mpi_.Irecv(&heard_, sizeof(Note), mpi_.bytes, mpi_.any_source, kNotes, communicator_, &listening_), "MPI_Irecv");
}

bool MpiCommunicator::IsDone(Handle* request) {
  int done = 0;
  MpiLibrary::StatusBytes ignored;
  Fail(mpi_.Test(request, &done, &ignored), "MPI_Test");
  return done != 0;
}

// Returns whether something has happened.
bool MpiCommunicator::Progress(std::vector<Ended>& ended) {
  bool some = false;
  while (failure_.ok() && IsDone(&listening_)) {
    some = true;
    const Note note = heard_;
    Listen();
    Take(note, ended);
  }
  for (auto awaited = awaited_.begin(); awaited != awaited_.end() && failure_.ok();) {
    const bool done = IsDone(&awaited->second.request);
    if (done && awaited->second.done != nullptr) ended.push_back({std::move(awaited->second.done), Status::Ok()});
    awaited = done ? awaited_.erase(awaited) : std::next(awaited);
    some = some || done;
  }
  for (auto sent = sent_.begin(); sent != sent_.end() && failure_.ok();) {
    const bool done = IsDone(&sent->request);
    if (done && sent->done != nullptr) ended.push_back({std::move(sent->done), Status::Ok()});
    sent = done ? sent_.erase(sent) : std::next(sent);
    some = some || done;
  }
  if (barrier_ != 0 && failure_.ok() && !all_are_here_ && IsDone(&barrier_)) {
    all_are_here_ = some = true;
    changed_.NotifyAll();
  }
  if (!failure_.ok()) {
    // MPI may still hold the messages, so they stay until the process ends.
    for (auto& [tag, awaited] : awaited_) {
      if (awaited.done != nullptr) ended.push_back({std::exchange(awaited.done, nullptr), failure_});
    }
    for (Sent& sent : sent_) {
      if (sent.done != nullptr) ended.push_back({std::exchange(sent.done, nullptr), failure_});
    }
    for (auto& [place, offer] : offers_) ended.push_back({std::move(offer.done), failure_});
    offers_.clear();
  }
  return some;
}

void MpiCommunicator::Take(const Note& note, std::vector<Ended>& ended) {
  const Place place{note.from, note.key};
  switch (note.kind) {
    case Note::kAsk: {
      const Request request{note.tag, note.bytes};
      const auto offer = offers_.find(place);
      if (offer == offers_.end()) {
        requests_[place] = request;
        return;
      }
      Offer found = std::move(offer->second);
      offers_.erase(offer);
      return Answer(place, request, std::move(found), ended);
    }
    case Note::kWithdraw: {
      const auto request = requests_.find(place);
      if (request == requests_.end() || request->second.tag != note.tag) return;  // The data are on their way.
      requests_.erase(request);
      return Post(note.from, {Note::kWithdrawn, note.tag, rank_, note.key, 0});
    }
    case Note::kOtherSize:
    case Note::kWithdrawn: {
      const auto awaited = awaited_.find(note.tag);
      if (awaited == awaited_.end()) return;
      if (awaited->second.done != nullptr) {
        ended.push_back({std::exchange(awaited->second.done, nullptr),
                         Status::InvalidArgument(std::to_string(note.bytes) + " bytes, and here they take " +
                                                 std::to_string(awaited->second.message->bytes()) + ".")});
      }
      Fail(mpi_.Cancel(&awaited->second.request), "MPI_Cancel");  // Its test returns true from now on.
      return;
    }
  }
}

void MpiCommunicator::Cancel(const void* calls) {
  std::vector<Ended> ended;
  {
    const Lock lock(mutex_);
    const Status cancelled = Status::Cancelled("The message was cancelled.");
    for (auto offer = offers_.begin(); offer != offers_.end();) {
      const bool ends = offer->second.calls == calls;
      if (ends) ended.push_back({std::move(offer->second.done), cancelled});
      offer = ends ? offers_.erase(offer) : std::next(offer);
    }
    for (auto& [tag, awaited] : awaited_) {
      if (awaited.calls != calls || awaited.done == nullptr) continue;
      ended.push_back({std::exchange(awaited.done, nullptr), cancelled});
      if (failure_.ok()) Post(awaited.place.first, {Note::kWithdraw, tag, rank_, awaited.place.second, 0});
    }
  }
  End(ended);
}

void MpiCommunicator::Fail(int error, const char* what) {
  if (error == 0 || !failure_.ok()) return;
  failure_ = mpi_.StatusOf(error, what);
  Wake();
}

void MpiCommunicator::Wake() {
  posted_ = true;
  changed_.NotifyAll();
}

void MpiCommunicator::End(std::vector<Ended>& ended) {
  for (Ended& each : ended) {
    if (each.done != nullptr) each.done(std::move(each.status));
  }
}

void MpiCommunicator::Poll() {
  prctl(PR_SET_TIMERSLACK, 1000);  // Nanoseconds. The default would add 50 us to each sleep.
  Clock::time_point since = Clock::now();
  while (true) {
    std::vector<Ended> ended;
    bool some = false;
    {
      Lock lock(mutex_);
      if (stops_) {
        stopped_ = true;
        changed_.NotifyAll();
        return;
      }
      const bool posted = std::exchange(posted_, false);
      some = Progress(ended) || posted;
      const std::chrono::nanoseconds idle = Clock::now() - since;
      if (!some && !IsAwaited()) {
        changed_.WaitFor(lock, kMpiSleep, [this]() IPU_REQUIRES(mutex_) { return posted_ || stops_; });
      } else if (!some && idle > kMpiSpin) {
        changed_.WaitFor(lock, std::clamp(idle / kMpiSleepShare, kMpiSpin / 4, kMpiSleep),
                         [this]() IPU_REQUIRES(mutex_) { return posted_ || stops_; });
      }
    }
    End(ended);
    if (some) {
      since = Clock::now();
    } else if (Clock::now() - since <= kMpiSpin) {
      sched_yield();
    }
  }
}

// Returns whether somebody waits for a message of this worker, or this worker waits for one.
bool MpiCommunicator::IsAwaited() const {
  return !awaited_.empty() || !sent_.empty() || (barrier_ != 0 && !all_are_here_) ||
         std::any_of(offers_.begin(), offers_.end(), [](const auto& offer) { return offer.second.done != nullptr; });
}

void MpiCommunicator::Abort(int code) { mpi_.Abort(communicator_, code); }

void MpiCommunicator::AwaitAll() {
  {
    Lock lock(mutex_);
    if (failure_.ok()) Fail(mpi_.Ibarrier(communicator_, &barrier_), "MPI_Ibarrier");
    Wake();
    changed_.Wait(lock, [this]() IPU_REQUIRES(mutex_) { return all_are_here_ || !failure_.ok() || stopped_; });
  }
  Stop();
}

void MpiCommunicator::Stop() {
  Lock lock(mutex_);
  stops_ = true;
  changed_.NotifyAll();
  changed_.Wait(lock, [this]() IPU_REQUIRES(mutex_) { return stopped_; });
  if (!failure_.ok()) return;
  failure_ = Status::Cancelled("This process has left the workers.");
  mpi_.Cancel(&listening_);
  int done = 0;
  MpiLibrary::StatusBytes ignored;
  while (done == 0 && mpi_.Test(&listening_, &done, &ignored) == 0) sched_yield();
}

}  // namespace tensorflow_ipu::core
