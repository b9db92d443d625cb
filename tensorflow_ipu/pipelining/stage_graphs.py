"""The graphs of stages, and the graphs derived from them for backward passes, recomputation and weight updates."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._tensorflow import graphs, variables
from tensorflow_ipu._tensorflow.gradients import between

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Gradient, Nested, ShapeLike

# The attribute of operations whose results a recomputing stage stashes too.
CHECKPOINT = "_IpuRecomputationCheckpoint"

_VIEWS = frozenset({"Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient", "Snapshot"})
# An eager tensor of up to this number of elements becomes a constant of a stage, as in a `tf.function`. A larger one is
# captured.
_LARGEST_VALUE = 128
# A constant of a stage of up to this number of elements becomes a constant of derived graphs. For a larger one, they
# copy the operations that compute it.
_LARGEST_CONSTANT = 1024


def flat_tensors(structure: Nested) -> list[Any]:
    """Returns the tensors of a structure without None."""
    return [tensor for tensor in tf.nest.flatten(structure) if tensor is not None]


def spec_of(tensor: tf.Tensor | tf.Variable) -> tf.TensorSpec:
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def placeholder(graph: tf.Graph, tensor: tf.Tensor | tf.TensorSpec, name: str) -> tf.Tensor:
    """Creates a placeholder of a tensor's shape and type. It is not yet an input of the function's graph."""
    with graph.as_default(), tf.control_dependencies(None):
        return tf.compat.v1.placeholder(tensor.dtype, tensor.shape, name)


class StageGraph(graphs.FunctionGraph):
    """The graph of a stage. Small eager tensors become constants and are not captured."""

    runs_in_loop = True  # The loop over the micro-batches; see `graphs.in_loop`.

    def __init__(self, stage: str) -> None:
        super().__init__(f"pipeline_{stage.replace(' ', '_').replace('.', '_')}")
        self.stage = stage
        # By the id of an eager tensor: the tensor itself, so that its id is not reused, and its constant.
        self._constants: dict[int, tuple[tf.Tensor, tf.Tensor]] = {}
        self._outside: dict[int, tf.Tensor] = {}
        self._varies: dict[int, bool] = {}
        self.used_micro_batch: tf.Tensor | None = None
        self.changed: Collection[int] = ()  # The ids of the resources that the pipeline changes.

    @property
    def ipu_micro_batch(self) -> tf.Tensor:
        """The number of the micro-batch, an int32 scalar. It becomes an input of the graph when it is first used."""
        if self.used_micro_batch is None:
            self.used_micro_batch = placeholder(self, tf.TensorSpec([], tf.int32), "micro_batch")
        return self.used_micro_batch

    def capture(self, tensor: tf.Tensor, name: str | None = None, shape: ShapeLike | None = None) -> tf.Tensor:
        """Returns the tensor of this graph for a tensor of another graph or an eager tensor."""
        if not _is_small_value(tensor):
            return super().capture(tensor, name, shape)
        if id(tensor) not in self._constants:
            with self.as_default(), tf.control_dependencies(None):
                self._constants[id(tensor)] = tensor, tf.constant(tensor.numpy(), tensor.dtype, tensor.shape)
        return self._constants[id(tensor)][1]

    def end_trace(self, constants: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Records that the first inputs have the values `constants` for all micro-batches; returns all inputs."""
        inputs = self.inputs[: len(self.inputs) - len(self.captures)]
        self._outside = {id(inside): value for value, inside in zip(constants, inputs, strict=False)}
        self._outside |= {id(inside): outside for outside, inside in self.captures}
        return inputs

    def outside(self, tensor: tf.Tensor) -> tf.Tensor | None:
        """Returns the outer tensor that is the value of a placeholder for all micro-batches; None for other tensors."""
        return self._outside.get(id(tensor))

    def varies(self, tensor: tf.Tensor) -> bool:
        """Returns True if a tensor may differ between micro-batches: if it depends on a source. Results are cached."""
        tensor = resolve_identity(tensor)
        waiting = [tensor]
        while waiting:  # A deep stage would exceed the limit of recursion.
            top = waiting[-1]
            if id(top) in self._varies:
                waiting.pop()
            elif self.outside(top) is not None:
                self._varies[id(top)] = False
            elif self.is_source(top):
                self._varies[id(top)] = True
            else:
                inputs = [resolve_identity(operand) for operand in top.op.inputs]
                unknown = [operand for operand in inputs if id(operand) not in self._varies]
                waiting += unknown
                if not unknown:
                    self._varies[id(top)] = any(self._varies[id(operand)] for operand in inputs)
        return self._varies[id(tensor)]

    def is_source(self, tensor: tf.Tensor) -> bool:
        """Returns True if a tensor cannot be computed again from others: an input, or the result of a side effect.

        Reads of variables are sources only if the pipeline changes the variable.
        """
        op = tensor.op
        if op.type == "Placeholder":
            return self.outside(tensor) is None
        if op.type == "ReadVariableOp":
            return not self._is_unchanged(op.inputs[0])
        if not op.op_def.is_stateful:
            return False
        functions = _functions_of(op)
        resources = [operand for operand in op.inputs if operand.dtype == tf.resource]
        return not (functions and all(map(_only_reads, functions)) and all(map(self._is_unchanged, resources)))

    def _is_unchanged(self, handle: tf.Tensor) -> bool:
        """Returns True if the pipeline does not change the resource of a handle."""
        outside = self.outside(_loop_source(handle))
        return outside is not None and id(outside) not in self.changed


def _is_small_value(tensor: tf.Tensor) -> bool:
    if hasattr(tensor, "graph") or tensor.dtype in (tf.resource, tf.variant, tf.string):
        return False
    return tensor.shape.num_elements() <= _LARGEST_VALUE


def resolve_identity(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the tensor before any `IdentityN` operations."""
    # `tf.custom_gradient` and `tf.recompute_grad` pass all their tensors through an `IdentityN`.
    while tensor.op.type == "IdentityN":
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


def _loop_source(handle: tf.Tensor) -> tf.Tensor:
    """Returns the handle before any loops, which return resources unchanged."""
    while handle.op.type in ("While", "StatelessWhile"):
        handle = handle.op.inputs[handle.value_index]
    return handle


def _functions_of(op: tf.Operation) -> list[Any]:
    """Returns the functions of a call, a branch or a loop; an empty list for other operations."""
    names = []
    for name in op.node_def.attr:
        value = op.node_def.attr[name]
        names += [value.func.name, *(function.name for function in value.list.func)]
    return [graphs.function_named(op.graph, name) for name in names if name]


def _in_called_function(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the tensor inside a called function for a result of its call; other tensors are returned unchanged."""
    while tensor.op.type in ("PartitionedCall", "StatefulPartitionedCall"):
        (function,) = _functions_of(tensor.op)
        if function is None:
            break
        tensor = function.graph.outputs[tensor.value_index]
    return tensor


def _only_reads(function: Any) -> bool:
    """Returns True if a function has no side effects and no sources except reads of variables."""
    return function is not None and all(
        op.type in ("Placeholder", "ReadVariableOp")
        or not op.op_def.is_stateful
        or (bool(_functions_of(op)) and all(map(_only_reads, _functions_of(op))))
        for op in function.graph.get_operations()
    )


class LossCaptureGraph(graphs.FunctionGraph):
    """A graph that captures tensors of the stage that computes the loss as inputs."""

    def __init__(self, name: str, loss: StageGraph | None) -> None:
        super().__init__(name)
        self._loss = loss
        self.carried: list[
            tuple[tf.Tensor, tf.Tensor]
        ] = []  # The captured tensors of that stage with their placeholders.

    def capture(self, tensor: tf.Tensor, name: str | None = None, shape: ShapeLike | None = None) -> tf.Tensor:
        """Returns the tensor of this graph for a tensor of another graph."""
        if self._loss is None or getattr(tensor, "graph", None) is not self._loss:
            return super().capture(tensor, name=name, shape=shape)
        outside = self._loss.outside(tensor)
        if outside is not None:
            return super().capture(outside, name=name, shape=shape)
        for captured, inner in self.carried:
            if captured is tensor:
                return inner
        if not tensor.shape.is_fully_defined():
            raise ValueError(
                f"the optimizer of `optimizer_function` uses a tensor of shape {tensor.shape} of the pipeline's last stage,"
                " which needs a static shape: set it with `tf.ensure_shape`"
            )
        self.carried.append((tensor, placeholder(self, tensor, "carried")))
        return self.carried[-1][1]


class DerivedGraph(LossCaptureGraph):
    """A graph that uses tensors of a stage's graph: each is stashed, computed again, or captured from outside.

    A backward pass uses tensors of the forward pass, which are in another graph. `rematerialized` makes each available
    here. From the tensor, it walks back through the operations of the stage and copies them, up to these leaves:

    * a variable, or an outer value that all micro-batches share: captured;
    * a small constant: a constant of this graph;
    * the first tensor that has to be stashed: an input of this graph. If the stage recomputes, these are the inputs of
      the stage, results of side effects, and checkpoints. Otherwise, these are all tensors except views.

    Example: a stage `square(reshape(relu(x @ w)))`. Its backward pass uses `x`, `w`, the result of `relu` and that of
    the reshape. Without recomputation, the inputs are `x` and the result of `relu`, and this graph copies the reshape.
    With recomputation, the only input is `x`, and this graph copies the product, `relu` and the reshape. In both cases,
    it captures `w`.

    Each operation of the stage is copied at most once.
    """

    runs_in_loop = True  # The loop of the stage itself.

    def __init__(self, name: str, stage: StageGraph, *, recompute: bool, loss: StageGraph | None = None) -> None:
        super().__init__(name, loss)
        self._stage = stage
        self._recompute = recompute
        self._tensor_of: dict[int, tf.Tensor] = {}  # The tensor of this graph by the id of the tensor of the stage.
        self.stashed: list[tf.Tensor] = []
        self.placeholders: list[tf.Tensor] = []

    def capture(self, tensor: tf.Tensor, name: str | None = None, shape: ShapeLike | None = None) -> tf.Tensor:
        """Returns the tensor of this graph for a tensor of another graph."""
        graph = getattr(tensor, "graph", None)
        if graph is self._stage:
            return self.rematerialized(tensor)
        if isinstance(graph, StageGraph) and graph is not self._loss:
            raise ValueError(
                f"`compute_gradients` of the optimizer uses the tensor `{tensor.name}` of an inner stage of the pipeline for"
                f" the gradients of {self._stage.stage}, but it can only use outputs of the last stage: pass the tensor from"
                " stage to stage, and then to `optimizer_function` as an argument"
            )
        return super().capture(tensor, name=name, shape=shape)

    def dense(self, gradients: Iterable[Gradient | None]) -> list[tf.Tensor | None]:
        """Returns gradients as dense tensors of this graph. Gradient functions may return tensors of the stage."""
        return [None if gradient is None else self.capture(tf.convert_to_tensor(gradient)) for gradient in gradients]

    def gradients(
        self, ys: list[tf.Tensor], xs: list[tf.Tensor], grad_ys: list[tf.Tensor] | None
    ) -> list[tf.Tensor | None]:
        """Returns gradients of tensors of the stage, as dense tensors of this graph or None."""
        with self.as_default(), tf.device(None):
            return self.dense(between(ys, xs, grad_ys, self._stage))

    def rematerialized(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the tensor of this graph for a tensor of the stage's graph."""
        tensor = resolve_identity(tensor)
        waiting = [tensor]
        while waiting:  # A deep stage would exceed the limit of recursion.
            top = waiting[-1]
            if id(top) not in self._tensor_of:
                leaf = self._leaf(top)
                if leaf is None:
                    missing = [
                        operand
                        for operand in map(resolve_identity, top.op.inputs)
                        if id(operand) not in self._tensor_of
                    ]
                    if missing:
                        waiting += missing
                        continue
                    self._copy(top.op)
                else:
                    self._tensor_of[id(top)] = leaf
            waiting.pop()
        return self._tensor_of[id(tensor)]

    def needed_by(self, results: Iterable[tf.Tensor]) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Returns the stashed tensors on which `results` and side effects of this graph depend, with placeholders."""
        waiting = [tensor.op for tensor in results]
        waiting += [op for op in self.get_operations() if op.op_def.is_stateful]
        reached: set[str] = set()
        while waiting:  # A deep stage would exceed the limit of recursion.
            op = waiting.pop()
            if op.graph is self and op.name not in reached:
                reached.add(op.name)
                waiting += [*(operand.op for operand in op.inputs), *op.control_inputs]
        pairs = zip(self.stashed, self.placeholders, strict=True)
        return [(tensor, placeholder) for tensor, placeholder in pairs if placeholder.op.name in reached]

    def _leaf(self, tensor: tf.Tensor) -> tf.Tensor | None:
        """Returns the tensor of this graph for a leaf (see the class); None for a tensor whose operation is copied."""
        stage = self._stage
        outside = stage.outside(_loop_source(tensor) if tensor.dtype == tf.resource else tensor)
        if outside is not None:
            return super().capture(outside)
        if tensor.dtype not in (tf.resource, tf.variant) and (tensor.shape.num_elements() or 0) <= _LARGEST_CONSTANT:
            value = tf.get_static_value(tensor)
            if value is not None:
                with self.as_default(), tf.control_dependencies(None):
                    return tf.constant(value, tensor.dtype, tensor.shape)
        if not stage.varies(tensor):
            return None
        # A call returns all tensors that its gradient needs. Some are constants, such as the order of a transposition,
        # and need no stash.
        inner = _in_called_function(tensor)
        if inner is not tensor and not stage.varies(inner):
            return self.rematerialized(inner)
        if self._recompute:
            is_cut = stage.is_source(tensor) or CHECKPOINT in tensor.op.node_def.attr
        else:
            is_cut = tensor.op.type not in _VIEWS or stage.is_source(tensor)
        if not is_cut:
            return None
        stashed = placeholder(self, tensor, "stashed")
        variables.copy_handle_data(tensor, stashed)
        self.stashed.append(tensor)
        self.placeholders.append(stashed)
        return stashed

    def _copy(self, op: tf.Operation) -> None:
        for function in _functions_of(op):
            graphs.hold_function(self, function)
        with self.as_default(), tf.control_dependencies(None), tf.device(None):
            attributes = {name: value for name, value in op.node_def.attr.items() if name != "_class"}
            inputs = [self._tensor_of[id(resolve_identity(operand))] for operand in op.inputs]
            copied = graphs.copy_operation(self, op, inputs, attributes)
        for old, new in zip(op.outputs, copied.outputs, strict=True):
            variables.copy_handle_data(old, new)
            new.set_shape(old.shape)
            self._tensor_of[id(old)] = new
