#include "tensorflow_ipu/kernels/replicas/copies.h"

#include <cstring>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

std::atomic<bool> Copies::any_{false};

absl::Status Copies::Handles(tf::ResourceMgr* resources, const tf::ResourceHandle& handle, tf::Var* variable,
                             int64_t replicas, const std::function<tf::Tensor(int64_t)>& value,
                             std::vector<tf::ResourceHandle>* handles) {
  const bool shared = value == nullptr;
  handles->assign(shared ? 1 : 0, handle);
  const absl::MutexLock lock(&mutex_);
  Entry* entry = nullptr;
  TF_RETURN_IF_ERROR(Find(resources, variable, shared ? replicas : replicas + 1, &entry));
  if (entry->stale && shared) Refresh(variable, entry);
  for (std::size_t replica = 0; entry->stale && replica < entry->copies.size(); ++replica) {
    tf::Var* const copy = entry->copies[replica].variable.get();
    tf::mutex_lock writing(*copy->mu());
    *copy->tensor() = value(static_cast<int64_t>(replica));
    copy->is_initialized = true;
  }
  entry->stale = false;
  for (const Copy& copy : entry->copies) {
    handles->push_back(handle);
    handles->back().set_container(entry->container);
    handles->back().set_name(copy.name);
  }
  return absl::OkStatus();
}

absl::Status Copies::Read(tf::Var* variable, int64_t replica, tf::Tensor* value) {
  tf::core::RefCountPtr<tf::Var> source = tsl::core::GetNewRef(variable);
  {
    const absl::MutexLock lock(&mutex_);
    const auto found = entries_.find(variable);
    if (replica > 0 && found != entries_.end() && !found->second.stale) {
      if (replica > static_cast<int64_t>(found->second.copies.size())) {
        return absl::InvalidArgumentError(absl::StrCat("There is no replica ", replica,
                                                       " of this variable: it was used on ",
                                                       found->second.copies.size() + 1, " replicas."));
      }
      source = tsl::core::GetNewRef(found->second.copies[replica - 1].variable.get());
    }
  }
  // The mutex is released before this lock. A program locks its variables until it ends. It may wait for the host,
  // which may need the mutex to write another variable.
  tf::tf_shared_lock reading(*source->mu());
  if (!source->is_initialized) return absl::FailedPreconditionError("The variable has no value yet.");
  *value = *source->tensor();
  return absl::OkStatus();
}

absl::Status Copies::Write(tf::ResourceMgr* resources, tf::Var* variable, int64_t replica, int64_t replicas,
                           const tf::Tensor& value) {
  tf::core::RefCountPtr<tf::Var> target = tsl::core::GetNewRef(variable);
  {
    const absl::MutexLock lock(&mutex_);
    Entry* entry = nullptr;
    TF_RETURN_IF_ERROR(Find(resources, variable, replicas, &entry));
    if (entry->stale) Refresh(variable, entry);
    if (replica > 0) target = tsl::core::GetNewRef(entry->copies[replica - 1].variable.get());
  }
  tf::mutex_lock writing(*target->mu());
  *target->tensor() = value;
  target->is_initialized = true;
  return absl::OkStatus();
}

void Copies::NoteWrite(const tf::Var* variable) {
  const absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(variable);
  if (found != entries_.end()) found->second.stale = true;
}

absl::Status Copies::Find(tf::ResourceMgr* resources, tf::Var* variable, int64_t replicas, Entry** found) {
  auto position = entries_.find(variable);
  if (position == entries_.end()) {
    any_ = true;
    Entry entry{tf::core::WeakPtr<tf::Var>(variable, [this, variable] { Drop(variable); }),
                resources,
                resources->default_container(),
                {},
                true};
    position = entries_.emplace(variable, std::move(entry)).first;
  }
  Entry& entry = position->second;
  *found = &entry;
  const std::size_t copy_count = static_cast<std::size_t>(replicas) - 1;
  if (entry.copies.size() == copy_count) return absl::OkStatus();
  entry.stale = true;
  while (entry.copies.size() > copy_count) {
    Free(resources, std::move(entry.copies.back()));
    entry.copies.pop_back();
  }
  while (entry.copies.size() < copy_count) {
    TF_RETURN_IF_ERROR(Add(variable, &entry));
  }
  return absl::OkStatus();
}

absl::Status Copies::Add(tf::Var* variable, Entry* entry) {
  std::vector<Copy>& free = free_[entry->resources];
  while (!free.empty()) {
    Copy copy = std::move(free.back());
    free.pop_back();
    // A new resource manager may have the address of a closed session's manager.
    tf::Var* found = nullptr;
    const bool exists = entry->resources->Lookup(entry->container, copy.name, &found).ok();
    const tf::core::RefCountPtr<tf::Var> reference(found);
    if (exists && found == copy.variable.get()) {
      entry->copies.push_back(std::move(copy));
      return absl::OkStatus();
    }
  }
  Copy copy{absl::StrCat("ipu_replica_copy_", ++last_name_),
            tf::core::RefCountPtr<tf::Var>(new tf::Var(variable->tensor()->dtype()))};
  absl::Status status = entry->resources->CreateUnowned(entry->container, copy.name, copy.variable.get());
  if (status.ok()) entry->copies.push_back(std::move(copy));
  return status;
}

void Copies::Free(tf::ResourceMgr* resources, Copy copy) {
  {
    tf::mutex_lock writing(*copy.variable->mu());
    *copy.variable->tensor() = tf::Tensor();
    copy.variable->is_initialized = false;
  }
  free_[resources].push_back(std::move(copy));
}

void Copies::Refresh(tf::Var* variable, Entry* entry) {
  tf::tf_shared_lock reading(*variable->mu());
  for (const Copy& copy : entry->copies) {
    tf::mutex_lock writing(*copy.variable->mu());
    *copy.variable->tensor() = *variable->tensor();
    copy.variable->is_initialized = variable->is_initialized;
  }
  entry->stale = false;
}

void Copies::Drop(const tf::Var* variable) {
  const absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(variable);
  if (found == entries_.end()) return;
  for (Copy& copy : found->second.copies) Free(found->second.resources, std::move(copy));
  entries_.erase(found);
}

tf::Tensor TensorOf(const core::ProgramState& state) {
  tf::Tensor tensor(tf::DT_INT64, tf::TensorShape({core::kProgramStateSize}));
  std::memcpy(tensor.data(), &state, sizeof(state));
  return tensor;
}

void RestoreStates(tf::OpKernelContext* context) {
  for (int i = 0; i < context->num_inputs(); ++i) {
    if (!context->has_input(i) || context->input_dtype(i) != tf::DT_RESOURCE) continue;
    const tf::ResourceHandle& handle = tf::HandleFromInput(context, i);
    const std::optional<core::ProgramState> first = core::ProgramState::OfVariable(handle.name());
    tf::core::RefCountPtr<tf::Var> variable;
    if (!first.has_value() || !tf::LookupResource(context, handle, &variable).ok()) continue;
    Copies::Global().NoteWrite(variable.get());
    if (!variable->mu()->try_lock()) continue;
    *variable->tensor() = TensorOf(*first);
    variable->mu()->unlock();
  }
}

}  // namespace tensorflow_ipu
