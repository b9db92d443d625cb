// `IpuPipelineTurns` computes the loop indices of a pipeline: which micro-batches an iteration processes, and where in
// the rings. One custom call does so for all instructions of the iteration. As arithmetic, XLA would compile a kernel
// for each number, since they differ in their constants.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

// Micro-batches are given as offsets from `base`; those from 0 to `count` exist.
//   numbers[i] = base + number_of[i]
//   places[i] = (base + place_of[i]) mod depths[i]
//   runs[i]: whether micro-batch first[i] exists, and, by wanted[i]: 0: no more; 1: second[i] exists; 2: second[i] does
// not.
REGISTER_OP("IpuPipelineTurns")
    .Input("base: int32")
    .Input("count: int32")
    .Output("numbers: N * int32")
    .Output("places: P * int32")
    .Output("runs: S * bool")
    .Attr("N: int >= 0")
    .Attr("P: int >= 0")
    .Attr("S: int >= 0")
    .Attr("number_of: list(int) >= 0")
    .Attr("place_of: list(int) >= 0")
    .Attr("depths: list(int) >= 0")
    .Attr("first: list(int) >= 0")
    .Attr("second: list(int) >= 0")
    .Attr("wanted: list(int) >= 0")
    .SetShapeFn([](tf::shape_inference::InferenceContext* context) {
      for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->Scalar());
      return absl::OkStatus();
    });

namespace {

class TurnsXla : public tf::XlaOpKernel {
 public:
  explicit TurnsXla(tf::OpKernelConstruction* construction) : XlaOpKernel(construction) {
    std::vector<std::string> entries;
    std::vector<std::size_t> lengths;
    for (const char* const name : {"number_of", "place_of", "depths", "first", "second", "wanted"}) {
      std::vector<int64_t> values;
      OP_REQUIRES_OK(construction, construction->GetAttr(name, &values));
      entries.push_back(
          absl::StrCat(name, " = array<i64", values.empty() ? "" : ": ", absl::StrJoin(values, ", "), ">"));
      lengths.push_back(values.size());
    }
    attributes_ = absl::StrCat("{", absl::StrJoin(entries, ", "), "}");
    numbers_ = lengths[0] + lengths[1];
    results_ = numbers_ + lengths[3];
    OP_REQUIRES(construction,
                lengths[1] == lengths[2] && lengths[3] == lengths[4] && lengths[3] == lengths[5] &&
                    results_ == static_cast<std::size_t>(construction->num_outputs()),
                absl::InvalidArgumentError("The attributes of `IpuPipelineTurns` are of different lengths."));
  }

  void Compile(tf::XlaOpKernelContext* context) override {
    const xla::Shape scalar = xla::ShapeUtil::MakeShape(xla::S32, {});
    std::vector<xla::Shape> results(numbers_, scalar);
    results.resize(results_, xla::ShapeUtil::MakeShape(xla::PRED, {}));
    const xla::XlaOp turns = xla::CustomCallWithLayout(
        context->builder(), "ipu_pipeline_turns", {context->Input(0), context->Input(1)},
        xla::ShapeUtil::MakeTupleShape(results), {scalar, scalar}, attributes_,
        /*has_side_effect=*/false, /*output_operand_aliasing=*/{}, /*literal=*/nullptr,
        xla::CustomCallSchedule::SCHEDULE_NONE, xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
    for (std::size_t i = 0; i < results_; ++i) {
      context->SetOutput(static_cast<int>(i), xla::GetTupleElement(turns, static_cast<int64_t>(i)));
    }
  }

 private:
  std::string attributes_;
  std::size_t numbers_ = 0;
  std::size_t results_ = 0;
};

REGISTER_XLA_OP(Name("IpuPipelineTurns"), TurnsXla);

}  // namespace
}  // namespace tensorflow_ipu
