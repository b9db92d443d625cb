#include "tensorflow_ipu/kernels/replicas/copies.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

std::atomic<bool> Copies::any_{false};

Copies& Copies::Global() {
  static auto* const copies = new Copies();  // Never destroyed: variables may outlive static destructors.
  return *copies;
}

absl::Status Copies::Handles(tf::ResourceMgr* resources, const tf::ResourceHandle& handle, tf::Var* variable,
                             int64_t replicas, std::vector<tf::ResourceHandle>* handles) {
  handles->assign(1, handle);
  std::lock_guard<std::mutex> lock(mutex_);
  Entry* entry = nullptr;
  if (absl::Status status = Find(resources, variable, replicas, &entry); !status.ok()) return status;
  if (entry->stale) Refresh(variable, entry);
  AddHandles(*entry, handle, handles);
  return absl::OkStatus();
}

absl::Status Copies::OwnHandles(tf::ResourceMgr* resources, const tf::ResourceHandle& handle, tf::Var* variable,
                                int64_t replicas, const std::function<tf::Tensor(int64_t)>& value,
                                std::vector<tf::ResourceHandle>* handles) {
  handles->clear();
  std::lock_guard<std::mutex> lock(mutex_);
  Entry* entry = nullptr;
  if (absl::Status status = Find(resources, variable, replicas + 1, &entry); !status.ok()) return status;
  if (entry->stale) {
    for (int64_t replica = 0; replica < replicas; ++replica) {
      tf::Var* const copy = entry->copies[replica].get();
      tf::mutex_lock writing(*copy->mu());
      *copy->tensor() = value(replica);
      copy->is_initialized = true;
    }
    entry->stale = false;
  }
  AddHandles(*entry, handle, handles);
  return absl::OkStatus();
}

absl::Status Copies::Read(tf::Var* variable, int64_t replica, tf::Tensor* value) {
  std::lock_guard<std::mutex> lock(mutex_);
  tf::Var* source = variable;
  const auto found = entries_.find(variable);
  if (replica > 0 && found != entries_.end() && !found->second.stale) {
    if (replica > static_cast<int64_t>(found->second.copies.size())) {
      return absl::InvalidArgumentError(absl::StrCat("There is no replica ", replica,
                                                     " of this variable: it was used on ",
                                                     found->second.copies.size() + 1, " replicas."));
    }
    source = found->second.copies[replica - 1].get();
  }
  tf::tf_shared_lock reading(*source->mu());
  if (!source->is_initialized) return absl::FailedPreconditionError("The variable has no value yet.");
  *value = *source->tensor();
  return absl::OkStatus();
}

absl::Status Copies::Write(tf::ResourceMgr* resources, tf::Var* variable, int64_t replica, int64_t replicas,
                           const tf::Tensor& value) {
  std::lock_guard<std::mutex> lock(mutex_);
  Entry* entry = nullptr;
  if (absl::Status status = Find(resources, variable, replicas, &entry); !status.ok()) return status;
  if (entry->stale) Refresh(variable, entry);
  tf::Var* const target = replica == 0 ? variable : entry->copies[replica - 1].get();
  tf::mutex_lock writing(*target->mu());
  *target->tensor() = value;
  target->is_initialized = true;
  return absl::OkStatus();
}

void Copies::NoteWrite(const tf::Var* variable) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(variable);
  if (found != entries_.end()) found->second.stale = true;
}

absl::Status Copies::Find(tf::ResourceMgr* resources, tf::Var* variable, int64_t replicas, Entry** found) {
  auto at = entries_.find(variable);
  if (at == entries_.end()) {
    any_ = true;
    Entry entry{tf::core::WeakPtr<tf::Var>(variable, [this, variable] { Drop(variable); }),
                resources,
                resources->default_container(),
                {},
                {},
                true};
    at = entries_.emplace(variable, std::move(entry)).first;
  }
  Entry& entry = at->second;
  *found = &entry;
  const std::size_t wanted = static_cast<std::size_t>(replicas) - 1;
  if (entry.copies.size() == wanted) return absl::OkStatus();
  entry.stale = true;
  std::vector<std::string>& free_names = free_names_[resources];
  while (entry.copies.size() > wanted) {
    entry.copies.pop_back();
    free_names.push_back(std::move(entry.names.back()));
    entry.names.pop_back();
  }
  while (entry.copies.size() < wanted) {
    std::string name;
    if (free_names.empty()) {
      name = absl::StrCat("ipu_replica_copy_", ++last_name_);
    } else {
      name = std::move(free_names.back());
      free_names.pop_back();
      resources->Delete<tf::Var>(entry.container, name).IgnoreError();  // The name, whose copy is gone.
    }
    tf::core::RefCountPtr<tf::Var> copy(new tf::Var(variable->tensor()->dtype()));
    if (absl::Status status = resources->CreateUnowned(entry.container, name, copy.get()); !status.ok()) return status;
    entry.names.push_back(std::move(name));
    entry.copies.push_back(std::move(copy));
  }
  return absl::OkStatus();
}

void Copies::Refresh(tf::Var* variable, Entry* entry) {
  tf::tf_shared_lock reading(*variable->mu());
  for (const auto& copy : entry->copies) {
    tf::mutex_lock writing(*copy->mu());
    *copy->tensor() = *variable->tensor();
    copy->is_initialized = variable->is_initialized;
  }
  entry->stale = false;
}

void Copies::AddHandles(const Entry& entry, const tf::ResourceHandle& like,
                        std::vector<tf::ResourceHandle>* handles) const {
  for (const std::string& name : entry.names) {
    tf::ResourceHandle copy = like;
    copy.set_container(entry.container);
    copy.set_name(name);
    handles->push_back(std::move(copy));
  }
}

void Copies::Drop(const tf::Var* variable) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(variable);
  if (found == entries_.end()) return;
  std::vector<std::string>& free_names = free_names_[found->second.resources];
  for (std::string& name : found->second.names) free_names.push_back(std::move(name));
  entries_.erase(found);
}

}  // namespace tensorflow_ipu
