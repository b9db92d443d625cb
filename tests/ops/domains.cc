// A run of replicas by hand: what a device's replica group is told and asked by a run, as plain C functions for tests.
#include <cstdint>

#include "tensorflow_ipu/kernels/replicas/call_sites.h"

using tensorflow_ipu::ReplicaGroupOf;

extern "C" {

// Starts a run of so many replicas on a device. One run a device at a time; before any of its programs starts.
void domain_begin(int64_t device, int64_t replicas) { ReplicaGroupOf(device)->Begin(replicas); }

// The replica's program has ended, well or not: who waits for it now learns that it will not come.
void domain_leave(int64_t device, int64_t replica) { ReplicaGroupOf(device)->Leave(replica); }

// Fails all that waits in the device's run, or will wait in it. `code` is a number of absl::StatusCode.
void domain_abort(int64_t device, int32_t code, const char* message) {
  ReplicaGroupOf(device)->Abort({static_cast<absl::StatusCode>(code), message});
}

// Arrivals at collectives that wait for other replicas.
int64_t domain_waiting(int64_t device) { return ReplicaGroupOf(device)->waiting(); }

}  // extern "C"
