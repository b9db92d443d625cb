#ifndef TENSORFLOW_IPU_KERNELS_LOWERING_STATED_SHAPES_H_
#define TENSORFLOW_IPU_KERNELS_LOWERING_STATED_SHAPES_H_

#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tensorflow_ipu {

// The shape function of ops with an attribute `output_shapes`, a shape for each result.
inline absl::Status StatedShapes(tensorflow::shape_inference::InferenceContext* context) {
  std::vector<tensorflow::PartialTensorShape> shapes;
  TF_RETURN_IF_ERROR(context->GetAttr("output_shapes", &shapes));
  for (int i = 0; i < context->num_outputs() && i < static_cast<int>(shapes.size()); ++i) {
    tensorflow::shape_inference::ShapeHandle shape;
    TF_RETURN_IF_ERROR(context->MakeShapeFromPartialTensorShape(shapes[i], &shape));
    context->set_output(i, shape);
  }
  return absl::OkStatus();
}

}  // namespace tensorflow_ipu

#endif  // TENSORFLOW_IPU_KERNELS_LOWERING_STATED_SHAPES_H_
