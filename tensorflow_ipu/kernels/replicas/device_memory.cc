#include "tensorflow_ipu/kernels/replicas/device_memory.h"

#include <algorithm>
#include <cstddef>

#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow_ipu/kernels/support/never_destroyed.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

namespace {

thread_local RunMemory* of_thread = nullptr;

}  // namespace

class ProgramAllocator : public tf::AllocatorWrapper {
 public:
  ProgramAllocator() : AllocatorWrapper(tf::cpu_allocator()) {}

  void* AllocateRaw(std::size_t alignment, std::size_t bytes) override {
    return Noted(wrapped()->AllocateRaw(alignment, bytes));
  }

  void* AllocateRaw(std::size_t alignment, std::size_t bytes, const tf::AllocationAttributes& attributes) override {
    return Noted(wrapped()->AllocateRaw(alignment, bytes, attributes));
  }

  void DeallocateRaw(void* data) override {
    if (of_thread == nullptr || !of_thread->Defer(data)) wrapped()->DeallocateRaw(data);
  }

 private:
  static void* Noted(void* data) {
    if (of_thread != nullptr && data != nullptr) of_thread->NoteAllocated(data);
    return data;
  }
};

tf::Allocator* DeviceAllocator() { return &core::NeverDestroyed<ProgramAllocator>(); }

RunMemory::RunMemory(tf::OpKernelContext* context) : context_(context), around_(of_thread) { of_thread = this; }

RunMemory::~RunMemory() {
  of_thread = around_;
  if (!context_->status().ok()) return;  // The variables still use this memory.
  for (void* const data : deferred_) DeviceAllocator()->DeallocateRaw(data);
}

bool RunMemory::Defer(void* data) {
  const auto found = std::find(allocated_.rbegin(), allocated_.rend(), data);
  if (found != allocated_.rend()) {
    *found = allocated_.back();
    allocated_.pop_back();
    return false;
  }
  if (!IsOfVariable(data)) return false;
  deferred_.push_back(data);
  return true;
}

bool RunMemory::IsOfVariable(const void* data) {
  if (!of_variables_.has_value()) {
    of_variables_.emplace();
    for (int i = 0; i < context_->num_inputs(); ++i) {
      if (!context_->has_input(i) || context_->input_dtype(i) != tf::DT_RESOURCE) continue;
      // Looks up the variable by name, as the launch does: the handle of a replica's copy still refers to the original
      // variable.
      const tf::ResourceHandle& handle = tf::HandleFromInput(context_, i);
      tf::Var* found = nullptr;
      if (!context_->resource_manager()->Lookup(handle.container(), handle.name(), &found).ok()) continue;
      const tf::core::RefCountPtr<tf::Var> variable(found);
      of_variables_->insert(variable->tensor()->data());  // The launch holds the lock.
    }
  }
  return of_variables_->contains(data);
}

}  // namespace tensorflow_ipu
