// The copies that replicas have of a program's variables.
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

// Replica 0 has the variable itself; the others have copies, made at the first replicated run that uses it. Copies keep
// their values from run to run. A write by the host, or by a program of another number of replicas, reaches all copies
// with the next run. A copy shares the variable's buffer until one of them is written.
//
// Copies are resources of the variable's device, where compiled programs look for variables. When a variable goes, its
// copies are emptied and reused: a manager that is being cleared must not find other resources destroyed at the same
// time.
//
// Thread-safe, but for two runs that use one variable at once.
class Copies {
 public:
  static Copies& Global() { return core::NeverDestroyed<Copies>(); }

  // The first is `handle` itself. With `value`, every replica, also the first one, has a copy that begins as
  // `value(replica)`.
  absl::Status Handles(tensorflow::ResourceMgr* resources, const tensorflow::ResourceHandle& handle,
                       tensorflow::Var* variable, int64_t replicas,
                       const std::function<tensorflow::Tensor(int64_t)>& value,
                       std::vector<tensorflow::ResourceHandle>* handles);

  // A replica without a copy has the variable's value.
  absl::Status Read(tensorflow::Var* variable, int64_t replica, tensorflow::Tensor* value);

  absl::Status Write(tensorflow::ResourceMgr* resources, tensorflow::Var* variable, int64_t replica, int64_t replicas,
                     const tensorflow::Tensor& value);

  // The variable may have been written other than by its replicas.
  void NoteWrite(const tensorflow::Var* variable);

  // Most processes have no copies, and note no writes.
  static bool Any() { return any_.load(std::memory_order_relaxed); }

 private:
  struct Copy {
    std::string name;
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
  };

  struct Entry {
    tensorflow::core::WeakPtr<tensorflow::Var> variable;  // Drops the entry when the variable goes.
    tensorflow::ResourceMgr* resources;
    std::string container;
    std::vector<Copy> copies;  // Of replicas 1, 2, ...
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
  // Empty copies to reuse, by resource manager (perhaps of a closed session).
  std::unordered_map<tensorflow::ResourceMgr*, std::vector<Copy>> free_ ABSL_GUARDED_BY(mutex_);
  int64_t last_name_ ABSL_GUARDED_BY(mutex_) = 0;
};

tensorflow::Tensor TensorOf(const core::ProgramState& state);

// Restores the states of a compiled program that failed: XLA may have reused the memory of the values to assign. Skips
// states that a later run holds, which restores them if it fails too.
void RestoreStates(tensorflow::OpKernelContext* context);

}  // namespace tensorflow_ipu
