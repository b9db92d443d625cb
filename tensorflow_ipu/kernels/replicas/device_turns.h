// The turns of runs on a device: as on the machine, one run comes after the other.
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

// Calls `begin` with OK when the run of the op of `context` has its turn: now, or later on the thread that ends the run
// before. Calls it with an error if the op is cancelled while it waits, or if the turn can never come: a function of
// the host asks for it, for which the run under way waits.
void RequestTurn(tensorflow::OpKernelContext* context, int64_t device, std::function<void(const absl::Status&)> begin);

// Waits for the turn on this thread.
absl::Status AwaitTurn(tensorflow::OpKernelContext* context, int64_t device);

// Ends the turn of the run under way.
void EndTurn(int64_t device);

// From now on this thread runs an application, which has its own IPUs: programs of one replica run beside those of
// others, and programs of several replicas have a lasting turn.
void RunApplicationOnThisThread();
bool RunsApplication();

}  // namespace tensorflow_ipu
