#include "tensorflow_ipu/kernels/lowering/ring_places.h"

#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/platform/refcount.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

namespace {

constexpr char kName[] = "ipu_ring_places";

// A resource of the lowering of one computation, which runs on one thread.
class RingPlaces : public tf::ResourceBase {
 public:
  std::string DebugString() const override { return kName; }

  std::vector<std::pair<xla::XlaOp, RingPlace>> places;
};

tf::ScopedStepContainer* ContainerOf(tf::XlaOpKernelContext* context) {
  return context->op_kernel_context()->step_container();
}

}  // namespace

absl::Status NoteRingPlace(tf::XlaOpKernelContext* context, xla::XlaOp value, const RingPlace& place) {
  RingPlaces* found = nullptr;
  const absl::Status status = ContainerOf(context)->LookupOrCreate<RingPlaces>(
      context->op_kernel_context()->resource_manager(), kName, &found, [](RingPlaces** made) {
        *made = new RingPlaces();
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  const tf::core::RefCountPtr<RingPlaces> places(found);
  places->places.emplace_back(value, place);
  return absl::OkStatus();
}

std::optional<RingPlace> RingPlaceOf(tf::XlaOpKernelContext* context, xla::XlaOp value) {
  RingPlaces* found = nullptr;
  const absl::Status status =
      ContainerOf(context)->Lookup<RingPlaces>(context->op_kernel_context()->resource_manager(), kName, &found);
  if (!status.ok()) return std::nullopt;  // Nothing was noted.
  const tf::core::RefCountPtr<RingPlaces> places(found);
  for (const auto& [read, place] : places->places) {
    if (read.IsIdenticalTo(value)) return place;
  }
  return std::nullopt;
}

}  // namespace tensorflow_ipu
