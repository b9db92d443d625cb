// The turns of runs on a device: as on the machine, one run follows the other.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow_ipu/kernels/support/turns.h"

namespace tensorflow_ipu {

core::Turns& TurnsOf(int64_t device);

// Fails all runs that wait for their turn on any device.
void InterruptWaitingRuns();

// Calls `begin` with OK when the run of the op of `context` has its turn: now, or later on the thread that ends the
// preceding run. Calls it with an error if the op is cancelled while it waits, or if the turn can never begin, because
// the active run waits for the host function that requests the turn.
void RequestTurn(tensorflow::OpKernelContext* context, int64_t device, std::function<void(const absl::Status&)> begin);

// Waits for the turn on this thread.
absl::Status AwaitTurn(tensorflow::OpKernelContext* context, int64_t device);

// Ends the active turn.
void EndTurn(int64_t device);

// Marks this thread as one that runs an application. An application occupies its IPUs: its programs of one replica run
// concurrently with other programs, and its programs of several replicas have a lasting turn (see `Turns`).
void RunApplicationOnThisThread();
bool RunsApplication();

}  // namespace tensorflow_ipu
