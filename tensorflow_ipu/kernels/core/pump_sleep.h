#ifndef TENSORFLOW_IPU_KERNELS_CORE_PUMP_SLEEP_H_
#define TENSORFLOW_IPU_KERNELS_CORE_PUMP_SLEEP_H_

#include <cstdint>

#include "tensorflow_ipu/kernels/core/mutex.h"
#include "tensorflow_ipu/kernels/core/tuning.h"

namespace tensorflow_ipu::core {

// Puts the pump to sleep while a queue is full. One wake serves half a queue, since a wake takes longer than ten small
// elements. Used with the queue's lock held.
class PumpSleep {
 public:
  // Sleeps until `has_room()` of a queue of so many elements.
  template <typename HasRoom>
  void AwaitRoom(Lock& lock, int64_t kept, HasRoom has_room) {
    sleeps_ = true;
    woken_at_ = kept / 2;
    wake_.Wait(lock, has_room);
    sleeps_ = false;
  }

  template <typename Holds>
  void Await(Lock& lock, Holds holds) {
    wake_.Wait(lock, holds);
  }

  // A program took elements. With `in_any_case`, it takes no more before others come.
  void Left(int64_t elements, bool in_any_case) {
    if (!sleeps_ || (elements > woken_at_ && !in_any_case)) return;
    sleeps_ = false;
    wake_.NotifyOne();
  }

  void Wake() { wake_.NotifyAll(); }

 private:
  Condition wake_;
  bool sleeps_ = false;
  int64_t woken_at_ = 0;  // The number of elements at which the pump is woken.
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_PUMP_SLEEP_H_
