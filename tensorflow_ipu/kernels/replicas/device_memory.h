// The memory of an IPU device, and what happens to it when a program fails.
#pragma once

#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tensorflow_ipu {

// The allocator of IPU devices: TensorFlow's for the CPU, except during a run; see `RunMemory`.
tensorflow::Allocator* DeviceAllocator();

// Keeps variables whole when a run fails.
//
// TensorFlow lends XLA the memory of each variable that a program updates in place. If the program fails before it
// begins, for want of memory say, XLA frees what it was lent, while the variable still has it. The launch of a program
// holds its thread and the locks of its variables from its first to its last such free. So this object, which lives
// during one launch on its thread, defers the frees of memory that a variable of the program had at that moment. In the
// end it frees that memory if the program succeeded, which has then replaced it, and otherwise leaves it to the
// variable.
class RunMemory {
 public:
  // `context` is that of the compiled program's kernel.
  explicit RunMemory(tensorflow::OpKernelContext* context);
  ~RunMemory();
  RunMemory(const RunMemory&) = delete;
  RunMemory& operator=(const RunMemory&) = delete;

 private:
  friend class ProgramAllocator;

  void NoteAllocated(void* data) { allocated_.push_back(data); }

  // Returns whether a free is deferred.
  bool Defer(void* data);

  bool IsOfVariable(const void* data);

  tensorflow::OpKernelContext* const context_;
  RunMemory* const around_;  // That of a run within which this one was launched.
  absl::InlinedVector<void*, 16> allocated_;
  std::optional<absl::flat_hash_set<const void*>> of_variables_;  // Looked up at the first other free.
  std::vector<void*> deferred_;
};

}  // namespace tensorflow_ipu
