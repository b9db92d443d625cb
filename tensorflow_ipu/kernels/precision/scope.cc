#include "tensorflow_ipu/kernels/precision/scope.h"

#include "absl/log/check.h"

namespace tensorflow_ipu::precision {

Scope Scope::Inside(const Emit& emit, uint64_t part) const {
  Scope inside = *this;
  inside.key = KeyOf(emit, key, part);
  inside.shared = KeyOf(emit, shared, part);
  return inside;
}

Value Scope::Packed(const Emit& emit) const {
  std::vector<Value> elements = {key.first, key.second, shared.first, shared.second, state, failed};
  elements.insert(elements.end(), iterations.begin(), iterations.end());
  return emit.Tuple(elements);
}

Scope Scope::Of(const Emit& emit, Value packed, const Scope& like) {
  Scope scope;
  scope.key = {emit.Element(packed, 0), emit.Element(packed, 1)};
  scope.shared = {emit.Element(packed, 2), emit.Element(packed, 3)};
  scope.state = emit.Element(packed, 4);
  scope.failed = emit.Element(packed, kFailed);
  for (std::size_t i = 0; i < like.iterations.size(); ++i) {
    scope.iterations.push_back(emit.Element(packed, kFailed + 1 + static_cast<int64_t>(i)));
  }
  scope.loops = like.loops;
  return scope;
}

Value Enter(xla::HloComputation* computation, const xla::Shape& packed) {
  const Emit emit(computation);
  const Value parameter = computation->parameter_instruction(0);
  const std::vector<Value> users(parameter->users().begin(), parameter->users().end());
  const xla::Shape plain = parameter->shape();
  *parameter->mutable_shape() = xla::ShapeUtil::MakeTupleShape({plain, packed});
  const Value inside = emit.Element(parameter, 0);
  for (const Value user : users) {
    for (int64_t i = 0; i < user->operand_count(); ++i) {
      if (user->operand(i) == parameter) CHECK_OK(user->ReplaceOperandWithDifferentShape(i, inside));
    }
  }
  if (computation->root_instruction() == parameter) computation->set_root_instruction(inside, true);
  return emit.Element(parameter, 1);
}

void Leave(const Emit& emit, Value packed) {
  const Value root = emit.computation()->root_instruction();
  emit.computation()->set_root_instruction(emit.Tuple({root, packed}), /*accept_different_shape=*/true);
}

}  // namespace tensorflow_ipu::precision
