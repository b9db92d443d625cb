// The copies of a program's variables that replicas use.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow_ipu/kernels/support/never_destroyed.h"
#include "tensorflow_ipu/kernels/support/program_state.h"

namespace tensorflow_ipu {

// Replica 0 uses the variable itself. The other replicas use copies, which are created by the first replicated run of a
// program with the variable. Copies keep their values from run to run. If the host, or a program with another number of
// replicas, writes the variable, all copies are updated at the next run. A copy shares the variable's buffer until one
// of them is written.
//
// Copies are resources of the variable's device, where compiled programs look up variables. When a variable is deleted,
// its copies are emptied and reused, because a resource manager that is being cleared must not find that other
// resources are destroyed at the same time.
//
// Thread-safe, except for two runs that use the same variable at the same time.
class Copies {
 public:
  static Copies& Global() { return core::NeverDestroyed<Copies>(); }

  // Returns the handles that the replicas use. The first one is `handle` itself. With `value`, every replica, including
  // the first one, has a copy with the initial value `value(replica)`.
  absl::Status Handles(tensorflow::ResourceMgr* resources, const tensorflow::ResourceHandle& handle,
                       tensorflow::Var* variable, int64_t replicas,
                       const std::function<tensorflow::Tensor(int64_t)>& value,
                       std::vector<tensorflow::ResourceHandle>* handles);

  // Reads the value of a replica. A replica without a copy has the variable's value.
  absl::Status Read(tensorflow::Var* variable, int64_t replica, tensorflow::Tensor* value);

  absl::Status Write(tensorflow::ResourceMgr* resources, tensorflow::Var* variable, int64_t replica, int64_t replicas,
                     const tensorflow::Tensor& value);

  // Records that the variable may have been written by others than its replicas.
  void NoteWrite(const tensorflow::Var* variable);

  // Returns false if no copy was ever created. Then writes need not be recorded, as in most processes.
  static bool Any() { return any_.load(std::memory_order_relaxed); }

 private:
  struct Copy {
    std::string name;
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
  };

  struct Entry {
    tensorflow::core::WeakPtr<tensorflow::Var> variable;  // Drops the entry when the variable is deleted.
    tensorflow::ResourceMgr* resources;
    std::string container;
    std::vector<Copy> copies;  // Of the replicas 1, 2, ...
    bool stale = true;
  };

  absl::Status Find(tensorflow::ResourceMgr* resources, tensorflow::Var* variable, int64_t replicas, Entry** found)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Add(tensorflow::Var* variable, Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Free(tensorflow::ResourceMgr* resources, Copy copy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Refresh(tensorflow::Var* variable, Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop(const tensorflow::Var* variable) ABSL_LOCKS_EXCLUDED(mutex_);

  static std::atomic<bool> any_;

  absl::Mutex mutex_;
  std::unordered_map<const tensorflow::Var*, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  // Empty copies for reuse, by resource manager (which may belong to a closed session).
  std::unordered_map<tensorflow::ResourceMgr*, std::vector<Copy>> free_ ABSL_GUARDED_BY(mutex_);
  int64_t last_name_ ABSL_GUARDED_BY(mutex_) = 0;
};

tensorflow::Tensor TensorOf(const core::ProgramState& state);

// Resets the state variables of a compiled program that failed to their initial states, because XLA may have reused the
// memory of their new values. Skips variables that a later run has locked; that run resets them if it fails too.
void RestoreStates(tensorflow::OpKernelContext* context);

}  // namespace tensorflow_ipu
