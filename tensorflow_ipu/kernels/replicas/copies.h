// The copies that the replicas of a program have of its variables.
#ifndef TENSORFLOW_IPU_KERNELS_REPLICAS_COPIES_H_
#define TENSORFLOW_IPU_KERNELS_REPLICAS_COPIES_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow_ipu/kernels/core/mutex.h"

namespace tensorflow_ipu {

// Replica 0 has the variable itself, so that what the host reads and saves is replica 0's; the others have copies, made
// at the first run of a replicated program that uses the variable. Copies keep their values from run to run. What the
// host writes to the variable reaches all copies with the next run, and so does what another program wrote that ran on
// another number of replicas.
//
// A copy shares the variable's buffer until one of them is written: XLA writes in place only where nobody else holds
// the buffer. So a variable that no program writes costs its memory once, whatever the number of replicas.
//
// Copies live in the resource manager of the variable's device, under names of their own, since that is where compiled
// programs look for variables. Their memory goes with the variable; the empty copy is kept and used again, since a
// manager that is being cleared, and destroys the variable, must not find others destroyed at the same time.
//
// Thread-safe, but for two runs that use one variable at once.
class Copies {
 public:
  static Copies& Global();

  // The handles for `replicas` replicas, the first of them `handle` itself.
  absl::Status Handles(tensorflow::ResourceMgr* resources, const tensorflow::ResourceHandle& handle,
                       tensorflow::Var* variable, int64_t replicas, std::vector<tensorflow::ResourceHandle>* handles);

  // The handles of a variable that is for programs alone, of which each replica has its own from the start: that of
  // replica r begins as `value(r)`. The first replica has a copy as well.
  absl::Status OwnHandles(tensorflow::ResourceMgr* resources, const tensorflow::ResourceHandle& handle,
                          tensorflow::Var* variable, int64_t replicas,
                          const std::function<tensorflow::Tensor(int64_t)>& value,
                          std::vector<tensorflow::ResourceHandle>* handles);

  // Reads what one replica has. A replica that has no copy yet has what the variable has.
  absl::Status Read(tensorflow::Var* variable, int64_t replica, tensorflow::Tensor* value);

  // Gives one of `replicas` replicas a value of its own.
  absl::Status Write(tensorflow::ResourceMgr* resources, tensorflow::Var* variable, int64_t replica, int64_t replicas,
                     const tensorflow::Tensor& value);

  // The variable was written, or may have been, other than by its replicas.
  void NoteWrite(const tensorflow::Var* variable);

  // Whether there are copies at all: most processes have none, and then nothing needs to be noted.
  static bool Any() { return any_.load(std::memory_order_relaxed); }

 private:
  // A copy and its name in the resource manager.
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
      IPU_REQUIRES(mutex_);
  absl::Status Add(tensorflow::Var* variable, Entry* entry) IPU_REQUIRES(mutex_);
  void Free(tensorflow::ResourceMgr* resources, Copy copy) IPU_REQUIRES(mutex_);
  void Refresh(tensorflow::Var* variable, Entry* entry) IPU_REQUIRES(mutex_);
  void AddHandles(const Entry& entry, const tensorflow::ResourceHandle& like,
                  std::vector<tensorflow::ResourceHandle>* handles) const IPU_REQUIRES(mutex_);

  void Drop(const tensorflow::Var* variable) IPU_EXCLUDES(mutex_);

  static std::atomic<bool> any_;

  core::Mutex mutex_;
  std::unordered_map<const tensorflow::Var*, Entry> entries_ IPU_GUARDED_BY(mutex_);
  // A resource manager, perhaps of a session that is closed: empty copies in it, to be used again.
  std::unordered_map<tensorflow::ResourceMgr*, std::vector<Copy>> free_ IPU_GUARDED_BY(mutex_);
  int64_t last_name_ IPU_GUARDED_BY(mutex_) = 0;
};

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_REPLICAS_COPIES_H_
