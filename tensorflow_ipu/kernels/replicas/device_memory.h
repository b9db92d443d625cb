// The memory of an IPU device, and its treatment when a program fails.
#pragma once

#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tensorflow_ipu {

// Returns the allocator of IPU devices. It is TensorFlow's allocator for the CPU, except during a run; see `RunMemory`.
tensorflow::Allocator* DeviceAllocator();

// Keeps the memory of variables valid when a run fails.
//
// TensorFlow lends XLA the memory of each variable that a program updates in place. If the program fails before it
// begins, for example without memory, XLA frees that memory although the variable still uses it. All these frees happen
// on the thread that launches the program, while it holds the locks of the program's variables. So this object, which
// exists during one launch on its thread, defers the frees of memory that a variable of the program had before. If the
// program succeeds, its variables have new memory, and the deferred frees are executed. Otherwise the memory stays with
// the variables.
class RunMemory {
 public:
  // `context` is the context of the compiled program's kernel.
  explicit RunMemory(tensorflow::OpKernelContext* context);
  ~RunMemory();
  RunMemory(const RunMemory&) = delete;
  RunMemory& operator=(const RunMemory&) = delete;

 private:
  friend class ProgramAllocator;

  void NoteAllocated(void* data) { allocated_.push_back(data); }

  // Returns true if the free is deferred.
  bool Defer(void* data);

  bool IsOfVariable(const void* data);

  tensorflow::OpKernelContext* const context_;
  RunMemory* const around_;  // The object of an enclosing run, within which this one was launched.
  absl::InlinedVector<void*, 16> allocated_;
  // Looked up at the first free of memory that was not allocated during the run.
  std::optional<absl::flat_hash_set<const void*>> of_variables_;
  std::vector<void*> deferred_;
};

}  // namespace tensorflow_ipu
