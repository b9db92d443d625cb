// How the thread that fills a queue sleeps while there is no room, and who wakes it.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_PUMP_SLEEP_H_
#define TENSORFLOW_IPU_KERNELS_CORE_PUMP_SLEEP_H_

#include <cstdint>

#include "tensorflow_ipu/kernels/core/mutex.h"
#include "tensorflow_ipu/kernels/core/tuning.h"

namespace tensorflow_ipu::core {

// One wake serves half a queue: to wake the pump takes a program longer than ten small elements do.
//
// Used with the queue's lock held.
class PumpSleep {
 public:
  // The pump's: sleeps until `has_room` returns true of a full queue that keeps so many elements.
  template <typename HasRoom>
  void AwaitRoom(Lock& lock, int64_t kept, HasRoom has_room) {
    sleeps_ = true;
    woken_at_ = kept / 2;
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
  Condition wake_;
  bool sleeps_ = false;
  int64_t woken_at_ = 0;  // How many elements are left when a pump that sleeps is to be woken.
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_PUMP_SLEEP_H_
