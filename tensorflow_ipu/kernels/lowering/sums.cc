// Lowers sums of products over all but the last dimension to a kernel of the host. Batch normalization and its gradient
// use such sums. XLA sums a few features at a time, and reads the memory again for each.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow_ipu/kernels/lowering/custom_call.h"
#include "tensorflow_ipu/kernels/lowering/host_kernel.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/service/hlo.pb.h"
#include "xla/shape_util.h"

namespace tensorflow_ipu {

namespace tf = tensorflow;

namespace {

using xla::internal::XlaBuilderFriend;

constexpr int64_t kFewElements = 16 << 10, kNone = -1;

bool IsBroadcast(xla::XlaBuilder* builder, int64_t handle) {
  return XlaBuilderFriend::GetInstructionByHandle(builder, handle)->opcode() == "broadcast";
}

// Returns a reshape of the instruction `handle`, whose shape must equal that of `like`. A builder cannot create an
// `XlaOp` from a handle, so this function reshapes `like` and then replaces the operand.
xla::XlaOp Reshaped(int64_t handle, xla::XlaOp like, absl::Span<const int64_t> dimensions) {
  const xla::XlaOp reshaped = xla::Reshape(like, dimensions);
  if (auto* const instruction = XlaBuilderFriend::GetInstruction(reshaped)) instruction->set_operand_ids(0, handle);
  return reshaped;
}

// The handles of the factors of a product, and of the value of each feature that is subtracted from both factors.
struct Product {
  int64_t left, right, center = kNone;
};

std::optional<Product> ProductOf(xla::XlaOp value, int64_t rank) {
  xla::XlaBuilder* const builder = value.builder();
  const auto* const multiply = XlaBuilderFriend::GetInstruction(value);
  if (multiply == nullptr || multiply->opcode() != "multiply") return std::nullopt;
  const Product product{multiply->operand_ids(0), multiply->operand_ids(1)};
  if (IsBroadcast(builder, product.left) || IsBroadcast(builder, product.right)) return std::nullopt;
  const auto* const factor = XlaBuilderFriend::GetInstructionByHandle(builder, product.left);
  if (product.left != product.right || factor->opcode() != "subtract") return product;
  const auto* const center = XlaBuilderFriend::GetInstructionByHandle(builder, factor->operand_ids(1));
  if (center->opcode() != "broadcast" || center->dimensions_size() != 1 || center->dimensions(0) != rank - 1) {
    return product;
  }
  return Product{factor->operand_ids(0), factor->operand_ids(0), center->operand_ids(0)};
}

}  // namespace

bool LowerAsSumOfProducts(tf::XlaOpKernelContext* context) {
  const std::string_view op = context->op_kernel().type_string_view();
  const absl::StatusOr<xla::Shape> shape = context->InputXlaShape(0);
  std::vector<int64_t> axes;
  if ((op != "Mean" && op != "Sum") || !shape.ok() || shape->is_dynamic() || shape->element_type() != xla::F32 ||
      !context->ConstantInputReshapedToIntVector(1, &axes).ok()) {
    return false;
  }
  const auto rank = static_cast<int64_t>(shape->dimensions().size());
  for (int64_t& axis : axes) axis = axis < 0 ? axis + rank : axis;
  std::sort(axes.begin(), axes.end());
  std::vector<int64_t> all_but_last(std::max<int64_t>(rank - 1, 0));
  std::iota(all_but_last.begin(), all_but_last.end(), int64_t{0});
  if (rank < 2 || axes != all_but_last || xla::ShapeUtil::ElementsIn(*shape) < kFewElements) return false;
  const std::optional<Product> product = ProductOf(context->Input(0), rank);
  if (!product) return false;
  xla::XlaBuilder* const builder = context->builder();
  const int64_t columns = shape->dimensions().back(), rows = xla::ShapeUtil::ElementsIn(*shape) / columns;
  const auto matrix = [&](int64_t handle) { return Reshaped(handle, context->Input(0), {rows, columns}); };
  xla::XlaOp center = xla::Broadcast(xla::Zero(builder, xla::F32), {columns});
  if (product->center != kNone) center = Reshaped(product->center, center, {columns});
  xla::XlaOp sums = AtRunTime(
      context, TypedCall(builder, "ipu_sum_of_products", {matrix(product->left), matrix(product->right), center},
                         xla::ShapeUtil::MakeShape(xla::F32, {columns})));
  if (op == "Mean") sums = sums / xla::ConstantR0<float>(builder, static_cast<float>(rows));
  bool keep = false;
  tf::TryGetNodeAttr(tf::AttrSlice(context->op_kernel().def()), "keep_dims", &keep);
  std::vector<int64_t> result_shape(keep ? rank : 1, 1);
  result_shape.back() = columns;
  context->SetOutput(0, xla::Reshape(sums, result_shape));
  return true;
}

}  // namespace tensorflow_ipu
