"""The graphs of stages, and graphs derived from them: what a backward pass stashes or computes again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._tensorflow import graphs, variables
from tensorflow_ipu._tensorflow.gradients import between

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Gradient, Nested, ShapeLike

# Marks what a recomputing stage is to stash all the same.
CHECKPOINT = "_IpuRecomputationCheckpoint"

_VIEWS = frozenset({"Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient", "Snapshot"})
# A tensor that was made outside of the program is a constant of a stage if it has up to so many elements, as with
# TensorFlow's functions; else all passes of the stage take it from there.
_LARGEST_VALUE = 128
# A constant of a stage with more elements is computed again in derived graphs, as it was made.
_LARGEST_CONSTANT = 1024


def flat_tensors(structure: Nested) -> list[Any]:
    """Returns the tensors of a structure, without its Nones."""
    return [tensor for tensor in tf.nest.flatten(structure) if tensor is not None]


def spec_of(tensor: tf.Tensor | tf.Variable) -> tf.TensorSpec:
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def placeholder(graph: tf.Graph, tensor: tf.Tensor | tf.TensorSpec, name: str) -> tf.Tensor:
    """Creates a placeholder of a tensor's shape and type, which is no input of the function's graph yet."""
    with graph.as_default(), tf.control_dependencies(None):
        return tf.compat.v1.placeholder(tensor.dtype, tensor.shape, name)


class StageGraph(graphs.FunctionGraph):
    """A stage's graph. Small tensors from outside of the program become constants, and do not count as captured."""

    runs_in_loop = True  # The one over the micro-batches; see `graphs.in_loop`.

    def __init__(self, stage: str) -> None:
        super().__init__(f"pipeline_{stage.replace(' ', '_').replace('.', '_')}")
        self.stage = stage
        # Each tensor, so that its id stays its own, with its constant.
        self._taken: dict[int, tuple[tf.Tensor, tf.Tensor]] = {}
        self._outside: dict[int, tf.Tensor] = {}
        self._varies: dict[int, bool] = {}
        self.used_micro_batch: tf.Tensor | None = None
        self.changed: Collection[int] = ()  # The ids of the resources that the pipeline changes.

    @property
    def ipu_micro_batch(self) -> tf.Tensor:
        """The number of the micro-batch, an input of the graph once it was used."""
        if self.used_micro_batch is None:
            self.used_micro_batch = placeholder(self, tf.TensorSpec([], tf.int32), "micro_batch")
        return self.used_micro_batch

    def capture(self, tensor: tf.Tensor, name: str | None = None, shape: ShapeLike | None = None) -> tf.Tensor:
        """Returns a tensor of another graph, or of none, as one of this graph."""
        if not _is_small_value(tensor):
            return super().capture(tensor, name, shape)
        if id(tensor) not in self._taken:
            with self.as_default(), tf.control_dependencies(None):
                self._taken[id(tensor)] = tensor, tf.constant(tensor.numpy(), tensor.dtype, tensor.shape)
        return self._taken[id(tensor)][1]

    def end_trace(self, constants: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Records that the first inputs always have the values `constants`; returns all inputs."""
        inputs = self.inputs[: len(self.inputs) - len(self.captures)]
        self._outside = {id(inside): value for value, inside in zip(constants, inputs, strict=False)}
        self._outside |= {id(inside): outside for outside, inside in self.captures}
        return inputs

    def outside(self, tensor: tf.Tensor) -> tf.Tensor | None:
        """Returns the tensor outside that a placeholder always is; None for any other tensor."""
        return self._outside.get(id(tensor))

    def varies(self, tensor: tf.Tensor) -> bool:
        """Returns True if a tensor may differ from micro-batch to micro-batch."""
        tensor = resolve_identity(tensor)
        waiting = [tensor]
        while waiting:  # No recursion: a stage can be deep.
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
        """Returns True if a tensor cannot be computed from others: for an input, or the result of a side effect."""
        op = tensor.op
        if op.type == "Placeholder":
            return self.outside(tensor) is None
        if op.type == "ReadVariableOp":
            return not self._is_lasting(op.inputs[0])
        if not op.op_def.is_stateful:
            return False
        functions = _functions_of(op)
        resources = [operand for operand in op.inputs if operand.dtype == tf.resource]
        return not (functions and all(map(_only_reads, functions)) and all(map(self._is_lasting, resources)))

    def _is_lasting(self, handle: tf.Tensor) -> bool:
        """Returns True for the handle of a resource that the pipeline does not change."""
        outside = self.outside(_loop_source(handle))
        return outside is not None and id(outside) not in self.changed


def _is_small_value(tensor: tf.Tensor) -> bool:
    if hasattr(tensor, "graph") or tensor.dtype in (tf.resource, tf.variant, tf.string):
        return False
    return tensor.shape.num_elements() <= _LARGEST_VALUE


def resolve_identity(tensor: tf.Tensor) -> tf.Tensor:
    """Follows a tensor through operations that pass on several tensors at once."""
    while tensor.op.type == "IdentityN":  # `tf.custom_gradient` and `tf.recompute_grad` tie tensors together by it.
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


def _loop_source(handle: tf.Tensor) -> tf.Tensor:
    """Follows a handle to where it enters loops, which pass resources on unchanged."""
    while handle.op.type in ("While", "StatelessWhile"):
        handle = handle.op.inputs[handle.value_index]
    return handle


def _functions_of(op: tf.Operation) -> list[Any]:
    """Returns the functions that an operation calls: a call, a branch, a loop."""
    names = []
    for name in op.node_def.attr:
        value = op.node_def.attr[name]
        names += [value.func.name, *(function.name for function in value.list.func)]
    return [graphs.function_named(op.graph, name) for name in names if name]


def _in_called_function(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the called function's own result for a result of its call; any other tensor as it is."""
    while tensor.op.type in ("PartitionedCall", "StatefulPartitionedCall"):
        (function,) = _functions_of(tensor.op)
        if function is None:
            break
        tensor = function.graph.outputs[tensor.value_index]
    return tensor


def _only_reads(function: Any) -> bool:
    """Returns True if reads of variables are a function's only effects and sources."""
    return function is not None and all(
        op.type in ("Placeholder", "ReadVariableOp")
        or not op.op_def.is_stateful
        or (bool(_functions_of(op)) and all(map(_only_reads, _functions_of(op))))
        for op in function.graph.get_operations()
    )


class LossCaptureGraph(graphs.FunctionGraph):
    """A graph that may use tensors of the stage that computes the loss: they become its inputs."""

    def __init__(self, name: str, loss: StageGraph | None) -> None:
        super().__init__(name)
        self._loss = loss
        self.carried: list[tuple[tf.Tensor, tf.Tensor]] = []  # These tensors, each with its placeholder.

    def capture(self, tensor: tf.Tensor, name: str | None = None, shape: ShapeLike | None = None) -> tf.Tensor:
        """Returns a tensor of another graph as one of this graph."""
        if self._loss is None or getattr(tensor, "graph", None) is not self._loss:
            return super().capture(tensor, name=name, shape=shape)
        outside = self._loss.outside(tensor)
        if outside is not None:
            return super().capture(outside, name=name, shape=shape)
        for known, here in self.carried:
            if known is tensor:
                return here
        if not tensor.shape.is_fully_defined():
            raise ValueError(
                f"`optimizer_function` has an optimizer use a tensor of shape {tensor.shape} of the pipeline's last stage,"
                " and such a tensor needs a static shape: state it with `tf.ensure_shape`"
            )
        self.carried.append((tensor, placeholder(self, tensor, "carried")))
        return self.carried[-1][1]


class DerivedGraph(LossCaptureGraph):
    """A graph that uses tensors of a stage's graph: those that have to be stashed become its inputs."""

    runs_in_loop = True  # As a stage itself does.

    def __init__(self, name: str, stage: StageGraph, *, recompute: bool, loss: StageGraph | None = None) -> None:
        super().__init__(name, loss)
        self._stage = stage
        self._recompute = recompute
        self._here: dict[int, tf.Tensor] = {}
        self.stashed: list[tf.Tensor] = []
        self.placeholders: list[tf.Tensor] = []

    def capture(self, tensor: tf.Tensor, name: str | None = None, shape: ShapeLike | None = None) -> tf.Tensor:
        """Returns a tensor of another graph as one of this graph."""
        graph = getattr(tensor, "graph", None)
        if graph is self._stage:
            return self.rematerialized(tensor)
        if isinstance(graph, StageGraph) and graph is not self._loss:
            raise ValueError(
                f"`compute_gradients` of the optimizer uses the tensor `{tensor.name}` of an inner stage of the pipeline for"
                f" the gradients of {self._stage.stage}, and only what the last stage returns reaches the optimizer:"
                " hand it on from stage to stage, and take it as an argument of `optimizer_function`"
            )
        return super().capture(tensor, name=name, shape=shape)

    def own(self, gradients: Iterable[Gradient | None]) -> list[tf.Tensor | None]:
        """Returns gradients as dense tensors of this graph; gradient functions may return tensors of the stage."""
        return [None if gradient is None else self.capture(tf.convert_to_tensor(gradient)) for gradient in gradients]

    def gradients(
        self, ys: list[tf.Tensor], xs: list[tf.Tensor], grad_ys: list[tf.Tensor] | None
    ) -> list[tf.Tensor | None]:
        """Differentiates tensors of the stage; returns dense tensors of this graph, or None where there is no gradient."""
        with self.as_default(), tf.device(None):
            return self.own(between(ys, xs, grad_ys, self._stage))

    def rematerialized(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns a tensor of the stage's graph as one of this graph."""
        tensor = resolve_identity(tensor)
        waiting = [tensor]
        while waiting:  # No recursion: a stage can be deep.
            top = waiting[-1]
            if id(top) not in self._here:
                leaf = self._leaf(top)
                if leaf is None:
                    missing = [
                        operand for operand in map(resolve_identity, top.op.inputs) if id(operand) not in self._here
                    ]
                    if missing:
                        waiting += missing
                        continue
                    self._copy(top.op)
                else:
                    self._here[id(top)] = leaf
            waiting.pop()
        return self._here[id(tensor)]

    def needed_by(self, results: Iterable[tf.Tensor]) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Returns what is stashed for these tensors of this graph and for its side effects, each with its placeholder."""
        waiting = [tensor.op for tensor in results]
        waiting += [op for op in self.get_operations() if op.op_def.is_stateful]
        seen: set[str] = set()
        while waiting:  # No recursion: a stage can be deep.
            op = waiting.pop()
            if op.graph is self and op.name not in seen:
                seen.add(op.name)
                waiting += [*(operand.op for operand in op.inputs), *op.control_inputs]
        pairs = zip(self.stashed, self.placeholders, strict=True)
        return [(tensor, placeholder) for tensor, placeholder in pairs if placeholder.op.name in seen]

    def _leaf(self, tensor: tf.Tensor) -> tf.Tensor | None:
        """Returns the tensor of this graph for one that is not computed from others; None for any other."""
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
        # What the gradient of a called function needs, such as the order of a transposition, is among the results of the call.
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
        variables.say_same_behind(tensor, stashed)
        self.stashed.append(tensor)
        self.placeholders.append(stashed)
        return stashed

    def _copy(self, op: tf.Operation) -> None:
        for function in _functions_of(op):
            graphs.hold_function(self, function)
        with self.as_default(), tf.control_dependencies(None), tf.device(None):
            attributes = {name: value for name, value in op.node_def.attr.items() if name != "_class"}
            inputs = [self._here[id(resolve_identity(operand))] for operand in op.inputs]
            copied = graphs.copy_operation(self, op, inputs, attributes)
        for old, new in zip(op.outputs, copied.outputs, strict=True):
            variables.say_same_behind(old, new)
            new.set_shape(old.shape)
            self._here[id(old)] = new
