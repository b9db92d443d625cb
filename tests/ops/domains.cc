// C functions by which a test performs a run of replicas: the calls that a run makes on the replica group of a device.
#include <cstdint>

#include "tensorflow_ipu/kernels/replicas/call_sites.h"

using tensorflow_ipu::ReplicaGroupOf;

extern "C" {

// Begins a run of `replicas` replicas on a device, before any of its programs starts. A device has one run at a time.
void domain_begin(int64_t device, int64_t replicas) { ReplicaGroupOf(device)->Begin(replicas); }

// Records that the program of a replica has ended, also by an error. Replicas that wait for it then fail.
void domain_leave(int64_t device, int64_t replica) { ReplicaGroupOf(device)->Leave(replica); }

// Fails all present and later waits in the run of the device. `code` is an absl::StatusCode.
void domain_abort(int64_t device, int32_t code, const char* message) {
  ReplicaGroupOf(device)->Abort({static_cast<absl::StatusCode>(code), message});
}

// Returns the number of replicas that wait in collectives for others.
int64_t domain_waiting(int64_t device) { return ReplicaGroupOf(device)->waiting(); }

}  // extern "C"
