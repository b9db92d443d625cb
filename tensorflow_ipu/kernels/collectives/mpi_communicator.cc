#include "tensorflow_ipu/kernels/collectives/mpi_communicator.h"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <iterator>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "tensorflow_ipu/kernels/support/threads.h"

namespace tensorflow_ipu::core {

namespace {

// MPI guarantees tags up to this value.
constexpr int32_t kLastTag = 32767;
// Messages with tag 0 are notes.
constexpr int32_t kNotes = 0;

}  // namespace

absl::Status MpiJoin::Begin(const MpiLibrary& library, MpiLibrary::Handle communicator, const std::string& name,
                            std::unique_ptr<MpiJoin>* join) {
  auto made = std::make_unique<MpiJoin>();
  made->library_ = library;
  made->original_ = communicator;
  library.Comm_rank(communicator, &made->rank_);
  library.Comm_size(communicator, &made->size_);
  made->table_.assign(static_cast<std::size_t>(made->size_) * kNameBytes, '\0');
  name.copy(made->NameOf(made->rank_), kNameBytes - 1);
  const auto bytes = static_cast<int>(kNameBytes);
  absl::Status status;
  if (made->rank_ > 0) {
    status = library.StatusOf(library.Isend(made->NameOf(made->rank_), bytes, library.bytes, 0, kLastTag, communicator,
                                            &made->requests_[made->size_]),
                              "MPI_Isend");
    if (status.ok()) status = made->Share();
  }
  for (int other = 1; made->rank_ == 0 && other < made->size_ && status.ok(); ++other) {
    status = library.StatusOf(library.Irecv(made->NameOf(other), bytes, library.bytes, other, kLastTag, communicator,
                                            &made->requests_[other]),
                              "MPI_Irecv");
  }
  if (status.ok()) *join = std::move(made);
  return status;
}

absl::Status MpiJoin::Share() {
  shares_ = true;
  absl::Status status =
      library_.StatusOf(library_.Ibcast(table_.data(), static_cast<int>(table_.size()), library_.bytes, 0, original_,
                                        &requests_[rank_ == 0 ? size_ : 0]),
                        "MPI_Ibcast");
  if (!status.ok()) return status;
  return library_.StatusOf(library_.Comm_idup(original_, &duplicate_, &requests_[size_ + 1]), "MPI_Comm_idup");
}

absl::Status MpiJoin::Advance(bool* joined) {
  *joined = false;
  for (auto request = requests_.begin(); request != requests_.end();) {
    int completed = 0;
    MpiLibrary::StatusBytes ignored;
    absl::Status status = library_.StatusOf(library_.Test(&request->second, &completed, &ignored), "MPI_Test");
    if (!status.ok()) return status;
    request = completed != 0 ? requests_.erase(request) : std::next(request);
  }
  if (!requests_.empty()) return absl::OkStatus();
  if (!shares_) return Share();
  *joined = true;
  return library_.StatusOf(library_.Comm_set_errhandler(duplicate_, library_.errors_return), "MPI_Comm_set_errhandler");
}

std::vector<int> MpiJoin::Missing() const {
  std::vector<int> ranks;
  for (const auto& [rank, request] : requests_) {
    if (rank < size_) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<std::string> MpiJoin::Names() const {
  std::vector<std::string> names;
  for (std::size_t at = 0; at < table_.size(); at += kNameBytes) names.emplace_back(table_.data() + at);
  return names;
}

bool MpiJoin::HostIsCrowded() const {
  const std::vector<std::string> names = Names();
  const auto host_of = [](const std::string& name) { return name.substr(name.rfind(' ') + 1); };
  const std::string own = host_of(names[static_cast<std::size_t>(rank_)]);
  return std::count_if(names.begin(), names.end(), [&](const std::string& name) { return host_of(name) == own; }) >
         static_cast<std::ptrdiff_t>(std::thread::hardware_concurrency());
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

std::shared_ptr<MpiCommunicator> MpiCommunicator::Make(const MpiJoin& join, Answer answer, absl::Status* status) {
  const std::shared_ptr<MpiCommunicator> made(new MpiCommunicator(join, std::move(answer)));
  {
    const absl::MutexLock lock(&made->mutex_);
    made->Listen();
  }
  *status = StartThread("ipu-mpi", [made] {
    made->Serve([&communicator = *made]()
                    ABSL_EXCLUSIVE_LOCKS_REQUIRED(communicator.mutex_) { return communicator.stops_; });
    const absl::MutexLock lock(&made->mutex_);
    made->stopped_ = true;
  });
  return status->ok() ? made : nullptr;
}

std::shared_ptr<Communicator::Calls> MpiCommunicator::NewCalls() {
  return std::make_shared<MpiCalls>(weak_from_this());
}

void MpiCommunicator::Send(const std::shared_ptr<Calls>& calls, int64_t to, const Key& key,
                           std::shared_ptr<const Message> message, Done done) {
  std::vector<Ended> ended;
  {
    const absl::MutexLock lock(&mutex_);
    absl::Status refusal = Refusal(*calls, message->bytes());
    Offer offer{calls.get(), std::move(message), std::move(done)};
    const auto request = requests_.find({to, key});
    if (!refusal.ok()) {
      ended.push_back({std::move(offer.done), std::move(refusal)});
    } else if (request != requests_.end()) {
      const Note asked = request->second;
      requests_.erase(request);
      Deliver(asked, std::move(offer), ended);
    } else if (offers_.count({to, key}) > 0) {
      ended.push_back({std::move(offer.done), absl::FailedPreconditionError("The key of the message is in use.")});
    } else {
      offers_.emplace(Place(to, key), std::move(offer));
    }
  }
  End(ended);
}

void MpiCommunicator::Receive(const std::shared_ptr<Calls>& calls, int64_t from, const Key& key,
                              std::shared_ptr<Message> message, Done done) {
  Request(Note::kRequest, calls, {from, key}, std::move(message), std::move(done));
}

void MpiCommunicator::Ask(const std::shared_ptr<Calls>& calls, int64_t of, const Key& question,
                          std::shared_ptr<Message> answer, Done done) {
  Request(Note::kQuestion, calls, {of, question}, std::move(answer), std::move(done));
}

void MpiCommunicator::Request(Note::Kind kind, const std::shared_ptr<Calls>& calls, const Place& place,
                              std::shared_ptr<Message> message, Done done) {
  std::vector<Ended> ended;
  {
    const absl::MutexLock lock(&mutex_);
    absl::Status refusal = Refusal(*calls, message->bytes());
    if (refusal.ok() && awaited_.size() >= kLastTag) {
      refusal = absl::ResourceExhaustedError("This process awaits " + std::to_string(kLastTag) + " messages already.");
    }
    if (!refusal.ok()) {
      ended.push_back({std::move(done), std::move(refusal)});
    } else {
      do {
        last_tag_ = last_tag_ % kLastTag + 1;
      } while (awaited_.count(last_tag_) > 0);
      Awaited& awaited = awaited_[last_tag_];
      awaited = {calls.get(), place, std::move(message), std::move(done), 0};
      Fail(mpi_.Irecv(awaited.message->data(), static_cast<int>(awaited.message->bytes()), mpi_.bytes,
                      static_cast<int>(place.first), last_tag_, communicator_, &awaited.request),
           "MPI_Irecv");
      Post(place.first, {kind, last_tag_, rank_, place.second, awaited.message->bytes()});
      Progress(ended);  // The other worker may have sent the message already, and the thread may be asleep.
    }
  }
  End(ended);
}

absl::Status MpiCommunicator::Refusal(const Calls& calls, std::size_t bytes) const {
  if (static_cast<const MpiCalls&>(calls).cancelled()) return absl::CancelledError("The message was cancelled.");
  if (bytes <= kMostBytes) return failure_;
  return absl::InvalidArgumentError("A message of " + std::to_string(bytes) + " bytes is too large: " +
                                    "the maximum is " + std::to_string(kMostBytes) + " bytes.");
}

void MpiCommunicator::Post(int64_t to, const Note& note) {
  sent_.push_back({nullptr, std::make_unique<Note>(note), nullptr, 0});
  Fail(mpi_.Isend(sent_.back().note.get(), sizeof(Note), mpi_.bytes, static_cast<int>(to), kNotes, communicator_,
                  &sent_.back().request),
       "MPI_Isend");
  Wake();
}

void MpiCommunicator::SendData(const Note& request, std::shared_ptr<const Message> message, Done done) {
  sent_.push_back({std::move(message), nullptr, std::move(done), 0});
  Sent& sent = sent_.back();
  Fail(mpi_.Isend(sent.message->data(), static_cast<int>(sent.message->bytes()), mpi_.bytes,
                  static_cast<int>(request.from), request.tag, communicator_, &sent.request),
       "MPI_Isend");
  Wake();
}

void MpiCommunicator::Deliver(const Note& request, Offer offer, std::vector<Ended>& ended) {
  if (offer.message->bytes() == request.bytes) {
    return SendData(request, std::move(offer.message), std::move(offer.done));
  }
  Post(request.from, {Note::kOtherSize, request.tag, rank_, request.key, offer.message->bytes()});
  ended.push_back({std::move(offer.done), absl::OkStatus()});
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

template <typename Requests, typename RequestOf>
bool MpiCommunicator::EndDone(Requests& requests, RequestOf request_of, std::vector<Ended>& ended) {
  bool some = false;
  for (auto each = requests.begin(); each != requests.end() && failure_.ok();) {
    auto& call = request_of(*each);
    const bool done = IsDone(&call.request);
    if (done) ended.push_back({std::move(call.done), absl::OkStatus()});
    each = done ? requests.erase(each) : std::next(each);
    some = some || done;
  }
  return some;
}

// Returns true if a request has completed.
bool MpiCommunicator::Progress(std::vector<Ended>& ended) {
  bool some = false;
  while (failure_.ok() && IsDone(&listening_)) {
    some = true;
    const Note note = heard_;
    Listen();
    Take(note, ended);
  }
  some |= EndDone(awaited_, [](auto& entry) -> Awaited& { return entry.second; }, ended);
  some |= EndDone(sent_, [](Sent& sent) -> Sent& { return sent; }, ended);
  if (barrier_ != 0 && failure_.ok() && !all_are_here_ && IsDone(&barrier_)) all_are_here_ = some = true;
  if (!failure_.ok()) EndCalls(ended);
  return some;
}

// MPI may still use the messages, so they stay allocated until the process ends.
void MpiCommunicator::EndCalls(std::vector<Ended>& ended) {
  for (auto& [tag, awaited] : awaited_) ended.push_back({std::exchange(awaited.done, nullptr), failure_});
  for (Sent& sent : sent_) ended.push_back({std::exchange(sent.done, nullptr), failure_});
  for (auto& [place, offer] : offers_) ended.push_back({std::move(offer.done), failure_});
  offers_.clear();
}

void MpiCommunicator::Take(const Note& note, std::vector<Ended>& ended) {
  const Place place{note.from, note.key};
  switch (note.kind) {
    case Note::kRequest: {
      const auto offer = offers_.find(place);
      if (offer == offers_.end()) {
        requests_[place] = note;
        return;
      }
      Offer found = std::move(offer->second);
      offers_.erase(offer);
      return Deliver(note, std::move(found), ended);
    }
    case Note::kQuestion:
      return SendData(note, answer_(note.key, note.bytes), nullptr);
    case Note::kWithdraw: {
      const auto request = requests_.find(place);
      if (request == requests_.end() || request->second.tag != note.tag) return;  // The data is already in flight.
      requests_.erase(request);
      return Post(note.from, {Note::kWithdrawn, note.tag, rank_, note.key, 0});
    }
    case Note::kOtherSize:
    case Note::kWithdrawn: {
      const auto awaited = awaited_.find(note.tag);
      if (awaited == awaited_.end()) return;
      ended.push_back({std::exchange(awaited->second.done, nullptr),
                       absl::InvalidArgumentError(std::to_string(note.bytes) + " bytes instead of " +
                                                  std::to_string(awaited->second.message->bytes()) + ".")});
      Fail(mpi_.Cancel(&awaited->second.request), "MPI_Cancel");  // Afterwards, `MPI_Test` completes it.
      return;
    }
  }
}

void MpiCommunicator::Cancel(const void* calls) {
  std::vector<Ended> ended;
  {
    const absl::MutexLock lock(&mutex_);
    const absl::Status cancelled = absl::CancelledError("The message was cancelled.");
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

void MpiCommunicator::Wake() { posted_ = true; }

void MpiCommunicator::End(std::vector<Ended>& ended) {
  for (Ended& each : ended) {
    if (each.done != nullptr) each.done(std::move(each.status));
  }
}

void MpiCommunicator::Serve(const std::function<bool()>& ends) {
  using Clock = std::chrono::steady_clock;
  prctl(PR_SET_TIMERSLACK, 1000);  // In nanoseconds. The default would add 50 us to each sleep.
  Clock::time_point since = Clock::now();
  while (true) {
    std::vector<Ended> ended;
    bool some = false;
    {
      const absl::MutexLock lock(&mutex_);
      if (ends()) return;
      const bool posted = std::exchange(posted_, false);
      some = Progress(ended) || posted;
      const std::chrono::nanoseconds idle = Clock::now() - since;
      const std::chrono::nanoseconds sleep =
          IsAwaited() ? std::clamp(idle / kMpiSleepShare, shortest_sleep_, kMpiSleep) : kMpiSleep;
      if (!some && (idle > kMpiSpin || !IsAwaited())) {
        const auto news = [this, &ends]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return posted_ || ends(); };
        mutex_.AwaitWithTimeout(absl::Condition(&news), absl::FromChrono(sleep));
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

// Returns true if a message from or to this worker is expected.
bool MpiCommunicator::IsAwaited() const {
  return !awaited_.empty() || !sent_.empty() || !offers_.empty() || (barrier_ != 0 && !all_are_here_);
}

void MpiCommunicator::Leave() {
  {
    const absl::MutexLock lock(&mutex_);
    stops_ = true;
    mutex_.Await(absl::Condition(&stopped_));
    if (failure_.ok()) Fail(mpi_.Ibarrier(communicator_, &barrier_), "MPI_Ibarrier");
  }
  // Runs on this thread, since MPI may be shutting down.
  Serve([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !failure_.ok() || (all_are_here_ && sent_.empty()); });
  std::vector<Ended> ended;
  {
    const absl::MutexLock lock(&mutex_);
    if (failure_.ok()) {
      failure_ = absl::CancelledError("This process has left the workers.");
      mpi_.Cancel(&listening_);
      int done = 0;
      MpiLibrary::StatusBytes ignored;
      while (done == 0 && mpi_.Test(&listening_, &done, &ignored) == 0) sched_yield();
    }
    EndCalls(ended);
  }
  End(ended);
}

}  // namespace tensorflow_ipu::core
