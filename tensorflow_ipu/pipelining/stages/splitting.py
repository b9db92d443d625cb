"""A stage's graph split in two: what runs forward, and what a backward pass stashes or computes again."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._tensorflow import graphs, variables
from tensorflow_ipu._tensorflow.gradients import between
from tensorflow_ipu.pipelining.stages.tracing import check_static, is_of_stage, placeholder, spec_of

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Gradient, ShapeLike
    from tensorflow_ipu.pipelining.stages.part import StagePart

# Marks what a recomputing stage is to stash all the same.
CHECKPOINT = "_IpuRecomputationCheckpoint"

_VIEWS = frozenset({"Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient", "Snapshot"})
# More than that is no constant of a program; it is computed again, as it was made.
_LARGEST_CONSTANT = 1024


class Sources:
    """What the tensors of a stage's graph depend on."""

    def __init__(self, stage: StagePart, assigned: Collection[int]) -> None:
        """Takes the stage, and the ids of the resources that the pipeline changes."""
        self.stage = stage
        self._assigned = assigned
        self._outside = {id(inside): outside for outside, inside in stage.graph.captures}
        self._constants = {
            id(inside): outside
            for inside, outside in zip(stage.inputs, stage.constant, strict=True)
            if outside is not None
        }
        self._varies: dict[int, bool] = {}

    def outside(self, tensor: tf.Tensor) -> tf.Tensor | None:
        """The tensor outside that a placeholder always is; None for any other tensor."""
        return self._outside.get(id(tensor), self._constants.get(id(tensor)))

    def varies(self, tensor: tf.Tensor) -> bool:
        """Whether a tensor may differ from micro-batch to micro-batch."""
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
                inputs = [resolve_identity(each) for each in top.op.inputs]
                unknown = [each for each in inputs if id(each) not in self._varies]
                if unknown:
                    waiting += unknown
                else:
                    self._varies[id(top)] = any(self._varies[id(each)] for each in inputs)
        return self._varies[id(tensor)]

    def is_source(self, tensor: tf.Tensor) -> bool:
        """Whether a tensor cannot be computed from others: an input, or what a side effect brought about."""
        op = tensor.op
        if op.type == "Placeholder":
            return self.outside(tensor) is None
        if op.type == "ReadVariableOp":
            return not self._is_lasting(op.inputs[0])
        if not op.op_def.is_stateful:
            return False
        functions = _functions_of(op)
        resources = [each for each in op.inputs if each.dtype == tf.resource]
        return not (functions and all(map(_only_reads, functions)) and all(map(self._is_lasting, resources)))

    def _is_lasting(self, handle: tf.Tensor) -> bool:
        """Whether a handle is that of a resource which the pipeline does not change."""
        outside = self.outside(loop_source(handle))
        return outside is not None and id(outside) not in self._assigned


def resolve_identity(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor that operations which pass on several tensors have as this one of their outputs; else the tensor itself."""
    while tensor.op.type == "IdentityN":  # `tf.custom_gradient` and `tf.recompute_grad` tie tensors together by it.
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


def loop_source(handle: tf.Tensor) -> tf.Tensor:
    """The handle that went into the loops whose output a handle is: loops hand resources on as they are."""
    while handle.op.type in ("While", "StatelessWhile"):
        handle = handle.op.inputs[handle.value_index]
    return handle


def _functions_of(op: tf.Operation) -> list[Any]:
    """The functions that an operation calls: a call, a branch, a loop."""
    names = []
    for name in op.node_def.attr:
        value = op.node_def.attr[name]
        names += [value.func.name, *(each.name for each in value.list.func)]
    return [graphs.function_named(op.graph, name) for name in names if name]


def _in_called_function(tensor: tf.Tensor) -> tf.Tensor:
    """The result of a called function that a tensor is, if it is one; else the tensor itself."""
    while tensor.op.type in ("PartitionedCall", "StatefulPartitionedCall"):
        (function,) = _functions_of(tensor.op)
        if function is None:
            break
        tensor = function.graph.outputs[tensor.value_index]
    return tensor


def _only_reads(function: Any) -> bool:
    """Whether a function has no other effect and no other source than reads of variables."""
    return function is not None and all(
        op.type in ("Placeholder", "ReadVariableOp")
        or not op.op_def.is_stateful
        or (bool(_functions_of(op)) and all(map(_only_reads, _functions_of(op))))
        for op in function.graph.get_operations()
    )


class LossCaptureGraph(graphs.FunctionGraph):
    """A graph that may use tensors of the stage that computes the loss: they become its inputs."""

    def __init__(self, name: str, loss: StagePart | None) -> None:
        """Makes an empty graph."""
        super().__init__(name)
        self._loss = loss
        self.carried: list[tuple[tf.Tensor, tf.Tensor]] = []  # These tensors, each with its placeholder.

    def capture(self, tensor: tf.Tensor, name: str | None = None, shape: ShapeLike | None = None) -> tf.Tensor:
        """Gives a tensor of another graph as one of this graph."""
        if self._loss is None or getattr(tensor, "graph", None) is not self._loss.graph:
            return super().capture(tensor, name=name, shape=shape)
        outside = self._loss.outside(tensor)
        if outside is not None:
            return super().capture(outside, name=name, shape=shape)
        for known, here in self.carried:
            if known is tensor:
                return here
        check_static(tensor)
        self.carried.append((tensor, placeholder(self, spec_of(tensor), "carried")))
        return self.carried[-1][1]


class DerivedGraph(LossCaptureGraph):
    """A graph that uses tensors of a stage's graph: those that have to be stashed become its inputs."""

    runs_in_loop = True  # As a stage itself does.

    def __init__(self, name: str, sources: Sources, *, recompute: bool, loss: StagePart | None = None) -> None:
        """Makes an empty graph."""
        super().__init__(name, loss)
        self._sources = sources
        self._recompute = recompute
        self._here: dict[int, tf.Tensor] = {}
        self._kept: list[tf.Tensor] = []  # Ids are those of living tensors.
        self.stashed: list[tf.Tensor] = []
        self.placeholders: list[tf.Tensor] = []

    def capture(self, tensor: tf.Tensor, name: str | None = None, shape: ShapeLike | None = None) -> tf.Tensor:
        """Gives a tensor of another graph as one of this graph."""
        graph = getattr(tensor, "graph", None)
        if graph is self._sources.stage.graph:
            return self.rematerialized(tensor)
        if is_of_stage(graph) and (self._loss is None or graph is not self._loss.graph):
            raise ValueError(
                f"`compute_gradients` of the optimizer uses the tensor `{tensor.name}` of an inner stage of the pipeline for"
                f" the gradients of {self._sources.stage.name}, and only what the last stage returns reaches the optimizer:"
                " hand it on from stage to stage, and take it as an argument of `optimizer_function`"
            )
        return super().capture(tensor, name=name, shape=shape)

    def own(self, gradients: Iterable[Gradient | None]) -> list[tf.Tensor | None]:
        """Returns gradients as dense tensors of this graph; gradient functions may return tensors of the stage as they are."""
        return [None if each is None else self.capture(tf.convert_to_tensor(each)) for each in gradients]

    def gradients(
        self, ys: list[tf.Tensor], xs: list[tf.Tensor], grad_ys: list[tf.Tensor] | None
    ) -> list[tf.Tensor | None]:
        """The gradients of the stage's tensors, as dense tensors of this graph; None where there is none."""
        with self.as_default(), tf.device(None):
            return self.own(between(ys, xs, grad_ys, self._sources.stage.graph))

    def rematerialized(self, tensor: tf.Tensor) -> tf.Tensor:
        """A tensor of the stage's graph as one of this graph."""
        tensor = resolve_identity(tensor)
        waiting = [tensor]
        while waiting:  # No recursion: a stage can be deep.
            top = waiting[-1]
            if id(top) in self._here:
                waiting.pop()
                continue
            found = self._leaf(top)
            if found is None:
                missing = [each for each in map(resolve_identity, top.op.inputs) if id(each) not in self._here]
                if missing:
                    waiting += missing
                    continue
                self._copy(top.op)
            else:
                self._here[id(top)] = found
                self._kept.append(top)
            waiting.pop()
        return self._here[id(tensor)]

    def needed_by(self, results: Iterable[tf.Tensor]) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """What is stashed for these tensors of this graph, and for its side effects: tensors, each with its placeholder."""
        waiting = [one.op for one in results]
        waiting += [op for op in self.get_operations() if op.op_def.is_stateful]
        seen: set[str] = set()
        while waiting:  # No recursion: a stage can be deep.
            op = waiting.pop()
            if op.graph is self and op.name not in seen:
                seen.add(op.name)
                waiting += [*(each.op for each in op.inputs), *op.control_inputs]
        pairs = zip(self.stashed, self.placeholders, strict=True)
        return [(tensor, placeholder) for tensor, placeholder in pairs if placeholder.op.name in seen]

    def _leaf(self, tensor: tf.Tensor) -> tf.Tensor | None:
        """The tensor of this graph for one that is not computed from others; None for one that is."""
        outside = self._sources.outside(loop_source(tensor) if tensor.dtype == tf.resource else tensor)
        if outside is not None:
            return super().capture(outside)
        if tensor.dtype not in (tf.resource, tf.variant) and (tensor.shape.num_elements() or 0) <= _LARGEST_CONSTANT:
            value = tf.get_static_value(tensor)
            if value is not None:
                with self.as_default(), tf.control_dependencies(None):
                    return tf.constant(value, tensor.dtype, tensor.shape)
        if not self._sources.varies(tensor):
            return None
        # What the gradient of a called function needs, such as the order of a transposition, is among the results of the call.
        inner = _in_called_function(tensor)
        if inner is not tensor and not self._sources.varies(inner):
            return self.rematerialized(inner)
        if self._recompute:
            is_cut = self._sources.is_source(tensor) or CHECKPOINT in tensor.op.node_def.attr
        else:
            is_cut = tensor.op.type not in _VIEWS or self._sources.is_source(tensor)
        if not is_cut:
            return None
        found = placeholder(self, spec_of(tensor), "stashed")
        variables.say_same_behind(tensor, found)
        self.stashed.append(tensor)
        self.placeholders.append(found)
        return found

    def _copy(self, op: tf.Operation) -> None:
        """Copies an operation whose inputs are here."""
        for function in _functions_of(op):
            graphs.hold_function(self, function)
        with self.as_default(), tf.control_dependencies(None), tf.device(None):
            attributes = {name: value for name, value in op.node_def.attr.items() if name != "_class"}
            copied = graphs.copy_operation(
                self, op, [self._here[id(resolve_identity(each))] for each in op.inputs], attributes
            )
        for old, new in zip(op.outputs, copied.outputs, strict=True):
            variables.say_same_behind(old, new)
            new.set_shape(old.shape)
            self._here[id(old)] = new
            self._kept.append(old)
