#include "tensorflow_ipu/kernels/collectives/call_sites.h"

#include <map>
#include <mutex>
#include <string>

#include "tensorflow_ipu/kernels/feeds/infeeds.h"

namespace tensorflow_ipu {

namespace {

// Never destroyed: threads of programs may outlive static destructors.
std::mutex& DomainsMutex() {
  static auto* const mutex = new std::mutex();
  return *mutex;
}

std::map<int64_t, std::shared_ptr<core::Domain>>& DomainsByDevice() {
  static auto* const domains = new std::map<int64_t, std::shared_ptr<core::Domain>>();
  return *domains;
}

bool SomeProgramWaitsForData() {
  for (const auto& infeed : Infeeds().All()) {
    const auto queue = infeed->queue();
    if (queue != nullptr && queue->waiting() > 0) return true;
  }
  return false;
}

}  // namespace

core::Registry<core::CallSite>& CallSites() {
  static auto* const sites = new core::Registry<core::CallSite>();
  return *sites;
}

std::shared_ptr<core::Domain> DomainOf(int64_t device) {
  std::lock_guard<std::mutex> lock(DomainsMutex());
  std::shared_ptr<core::Domain>& domain = DomainsByDevice()[device];
  if (domain == nullptr) {
    domain = std::make_shared<core::Domain>("/device:IPU:" + std::to_string(device), SomeProgramWaitsForData);
  }
  return domain;
}

std::vector<std::shared_ptr<core::Domain>> Domains() {
  std::lock_guard<std::mutex> lock(DomainsMutex());
  std::vector<std::shared_ptr<core::Domain>> all;
  for (const auto& entry : DomainsByDevice()) all.push_back(entry.second);
  return all;
}

}  // namespace tensorflow_ipu
