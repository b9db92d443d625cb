#include "tensorflow_ipu/kernels/lowering/pointwise.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

namespace {

using Sizes = std::vector<int64_t>;

enum class Role { kForward, kOfInput, kOfFilter };

bool IsPointwise(const tf::NodeDef& node, const Sizes& filter, int64_t features) {
  std::string format, padding;
  std::vector<int64_t> strides;
  if (!tf::TryGetNodeAttr(node, "data_format", &format) || (format != "NHWC" && format != "NDHWC")) return false;
  if (!tf::TryGetNodeAttr(node, "padding", &padding) || (padding != "SAME" && padding != "VALID")) return false;
  if (!tf::TryGetNodeAttr(node, "strides", &strides)) return false;
  const auto is_one = [](int64_t size) { return size == 1; };
  return std::all_of(strides.begin(), strides.end(), is_one) && std::all_of(filter.begin(), filter.end() - 2, is_one) &&
         filter[filter.size() - 2] == features;
}

// The sizes of an input, or (`says`) the sizes that the input holds; empty if they are unknown.
Sizes SizesOf(tf::XlaOpKernelContext* context, int input, bool says) {
  if (says) {
    tf::TensorShape shape;
    if (!context->ConstantInputAsShape(input, &shape).ok()) return {};
    const auto sizes = shape.dim_sizes();
    return {sizes.begin(), sizes.end()};
  }
  const absl::StatusOr<xla::Shape> shape = context->InputXlaShape(input);
  if (!shape.ok() || shape->is_dynamic()) return {};
  return {shape->dimensions().begin(), shape->dimensions().end()};
}

}  // namespace

bool LowerAsProduct(tf::XlaOpKernelContext* context) {
  const tf::NodeDef& node = context->op_kernel().def();
  const bool convolution = absl::StartsWith(node.op(), "Conv2D") || absl::StartsWith(node.op(), "Conv3D");
  if (!convolution) return false;
  const Role role = absl::StrContains(node.op(), "BackpropInput")    ? Role::kOfInput
                    : absl::StrContains(node.op(), "BackpropFilter") ? Role::kOfFilter
                                                                     : Role::kForward;
  const Sizes input = SizesOf(context, 0, role == Role::kOfInput);
  const Sizes filter = SizesOf(context, 1, role == Role::kOfFilter);
  if (input.size() < 3 || filter.size() != input.size() || !IsPointwise(node, filter, input.back())) return false;
  const int64_t in = input.back(), out = filter.back();
  const int64_t places = std::accumulate(input.begin(), input.end() - 1, int64_t{1}, std::multiplies<int64_t>());
  if (places == 0 || in == 0 || out == 0) return false;
  Sizes output = input;
  output.back() = out;
  const auto flat = [&](int number, int64_t rows, int64_t columns) {
    return xla::Reshape(context->Input(number), {rows, columns});
  };
  xla::DotDimensionNumbers axes;
  const auto contract = [&](int left, int right) {
    axes.add_lhs_contracting_dimensions(left);
    axes.add_rhs_contracting_dimensions(right);
  };
  if (role == Role::kForward) {
    contract(1, 0);
    context->SetOutput(0, xla::Reshape(xla::DotGeneral(flat(0, places, in), flat(1, in, out), axes), output));
  } else if (role == Role::kOfInput) {
    contract(1, 1);
    context->SetOutput(0, xla::Reshape(xla::DotGeneral(flat(2, places, out), flat(1, in, out), axes), input));
  } else {
    contract(0, 0);
    context->SetOutput(0, xla::Reshape(xla::DotGeneral(flat(0, places, in), flat(2, places, out), axes), filter));
  }
  return true;
}

}  // namespace tensorflow_ipu
