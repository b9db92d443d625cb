// How the thread that fills a queue sleeps while there is no room, and who wakes it.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_PUMP_SLEEP_H_
#define TENSORFLOW_IPU_KERNELS_CORE_PUMP_SLEEP_H_

#include <chrono>
#include <cstdint>
#include <optional>

#include "tensorflow_ipu/kernels/core/drain_rate.h"
#include "tensorflow_ipu/kernels/core/mutex.h"
#include "tensorflow_ipu/kernels/core/tuning.h"

namespace tensorflow_ipu::core {

// One wake serves half a queue. But to wake the pump takes a program longer than ten small elements do; so where a
// queue is emptied soon and steadily, the pump wakes by the clock when half of it should be free, and is woken only
// where that turns out to be too late.
//
// Used with the queue's lock held.
class PumpSleep {
 public:
  // The pump's: sleeps until `has_room` returns true of a full queue that keeps so many elements, after `taken` have
  // left it in all.
  template <typename HasRoom>
  void AwaitRoom(Lock& lock, int64_t kept, int64_t taken, HasRoom has_room) {
    const auto now = DrainRate::Clock::now();
    drain_rate_.Full(now, taken);
    const int64_t half = kept / 2;
    const std::optional<std::chrono::nanoseconds> until_half = drain_rate_.TimeFor(half);
    if (kept >= kRowsAhead && until_half.has_value() && *until_half <= kLongestNap) {
      Sleep(half / 2);
      wake_.WaitUntil(lock, now + *until_half);
    }
    Sleep(half);
    wake_.Wait(lock, has_room);
    sleeps_ = false;
  }

  // The pump's: sleeps until `holds` returns true, which is looked at after each Wake.
  template <typename Holds>
  void Await(Lock& lock, Holds holds) {
    wake_.Wait(lock, holds);
  }

  // A program took elements, and so many are left. `in_any_case`: it will take no more before others come.
  void Left(int64_t elements, bool in_any_case) {
    if (!sleeps_ || (elements > woken_at_ && !in_any_case)) return;
    sleeps_ = false;  // One wake is enough.
    wake_.NotifyOne();
  }

  void Wake() { wake_.NotifyAll(); }

 private:
  void Sleep(int64_t woken_at) {
    sleeps_ = true;
    woken_at_ = woken_at;
  }

  Condition wake_;
  DrainRate drain_rate_;
  bool sleeps_ = false;
  int64_t woken_at_ = 0;  // How many elements are left when a pump that sleeps is to be woken.
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_PUMP_SLEEP_H_
