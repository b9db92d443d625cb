"""The optimizer of a pipeline: which variables it trains, what it does to gradients, and its update."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._base.tensors import dtype_for, tf_variable
from tensorflow_ipu._tensorflow import assembly, graphs
from tensorflow_ipu._tensorflow.old_keras import take_over_slots
from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod, parts, update_memory
from tensorflow_ipu.pipelining.stages.part import GraphFunction
from tensorflow_ipu.pipelining.stages.tracing import StageTrace, check_static, spec_of
from tensorflow_ipu.pipelining.training.optimizer_output import OptimizerFunctionOutput, OptimizerKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensorflow_ipu._base.types import DTypeOf, Number, ShapeLike, Variable

# Of a variable that is trained: for each place where optimizers are made, their slots.
_ATTRIBUTE = "_ipu_slots_of_pipelines"


def take_over(
    optimizer: tf.compat.v1.train.Optimizer,
    function: Callable[..., object],
    stage: tf.Graph,
    variables: Sequence[tf.Variable],
) -> None:
    """Gives an optimizer that was made in this trace the slots of the one that the trace before made at the same point."""
    # In a graph of TensorFlow 1 each program is traced once, and has variables of its own.
    if not tf.compat.v1.executing_eagerly_outside_functions():
        return
    chain = list(_chain(optimizer))
    if not any(getattr(value, "graph", None) is stage for one in chain for value in vars(one).values()):
        return
    owner = variables[0]
    known = vars(owner).setdefault(_ATTRIBUTE, {})
    code = getattr(inspect.unwrap(function), "__code__", None)
    for at, one in enumerate(chain):
        take_over_slots(one, known, (code, at, type(one)))


def _chain(optimizer: tf.compat.v1.train.Optimizer) -> Iterator[tf.compat.v1.train.Optimizer]:
    """An optimizer, and those that it wraps."""
    yield optimizer
    for value in vars(optimizer).values():
        if isinstance(value, tf.compat.v1.train.Optimizer):
            yield from _chain(value)


class Training:
    """What a pipeline's optimizer function said, applied to the variables of its stages."""

    def __init__(self, output: OptimizerFunctionOutput, traces: Sequence[StageTrace]) -> None:
        """Finds the variables to train."""
        self._output = output
        self._args, self._kwargs, chosen = _without_var_list(output)
        used = _distinct([variable for trace in traces for variable in trace.variables])
        if chosen is None and output.variables:
            chosen = output.variables
        elif chosen is None and output.tape is not None:
            chosen = output.tape.watched_variables()
        # Keras has variables of its own, around those of TensorFlow; its optimizers are given back what they gave.
        self._given = {id(tf_variable(variable).handle): variable for variable in chosen or ()}
        if chosen:
            self.variables = _distinct([tf_variable(variable) for variable in chosen])
        else:
            self.variables = [variable for variable in used if variable.trainable]
        handles = {id(variable.handle) for variable in used}
        if not any(id(variable.handle) in handles for variable in self.variables):
            raise RuntimeError(
                "No variables to optimize: no stage of the pipeline uses a trainable variable"
                + (" that `OptimizerFunctionOutput` names" if chosen else "")
                + ". Use weights in the stages, or leave `optimizer_function` out to infer alone"
            )

    def mapped(self, pairs: list[tuple[tf.Tensor, tf.Variable]]) -> Sequence[tuple[tf.Tensor | None, tf.Variable]]:
        """Passes the gradients of one micro-batch through the optimizer's `compute_gradients`.

        An optimizer may scale the loss there, or clip, average and capture gradients. It takes a loss and differentiates it
        itself, so it is given a surrogate: the sum over the variables of `variable * gradient`, with the gradients as
        constants. The gradients of that sum are the given ones. TensorFlow's own `compute_gradients` does nothing else to
        them, and need not be asked: it takes 10 ms a stage.
        """
        if self._output.kind is not OptimizerKind.V1 or not pairs or self._only_differentiates():
            return pairs
        products = [tf.reduce_sum(variable * tf.stop_gradient(gradient)) for gradient, variable in pairs]
        loss = tf.add_n([tf.cast(product, products[0].dtype) for product in products])
        variables = [variable for _, variable in pairs]
        found = self._output.opt.compute_gradients(loss, *self._args, var_list=variables, **self._kwargs)
        return [(None if one is None else tf.convert_to_tensor(one), variable) for one, variable in found]

    def _only_differentiates(self) -> bool:
        """Whether the optimizer's `compute_gradients` is the one that TensorFlow has for all, called without options."""
        method = getattr(self._output.opt.compute_gradients, "__func__", None)
        plain = tf.compat.v1.train.Optimizer.compute_gradients
        return method is plain and not self._args and not self._kwargs

    def captured(self) -> dict[str, list[tf.Tensor]]:
        """The gradients that were captured last, by their tags; none where nothing captures."""
        capturing = self._output.capturing
        return {} if capturing is None else capturing.captured_gradients

    def finish(self, captured: dict[str, list[tf.Tensor]]) -> None:
        """Hands on the captured gradients of a pass."""
        queue = self._output.captured_gradient_outfeed
        if queue is not None and captured:
            queue.enqueue(captured)

    def prepare(self, function: Callable[..., OptimizerFunctionOutput], stage: tf.Graph) -> None:
        """Has the optimizer have its variables, ahead of any loop."""
        optimizer, variables = self._output.opt, self.variables
        if self._output.kind is OptimizerKind.V1:
            take_over(optimizer, function, stage, variables)
        elif self._output.kind is OptimizerKind.KERAS and not optimizer.built:
            optimizer.build([self._given.get(id(each.handle), each) for each in variables])

    def state_bytes(self) -> int:
        """What the optimizer keeps beside the weights, in bytes; 0 where it does not tell."""
        try:
            memory = update_memory(self._output.opt, ())
        except TypeError:
            return 0
        return memory.state_on_chip + memory.state_off_chip

    def update(self, gradients: Sequence[tuple[tf.Tensor, tf.Variable]]) -> None:
        """Updates the variables."""
        sums: dict[int, tf.Tensor] = {}
        for gradient, variable in gradients:
            key = id(variable.handle)
            sums[key] = sums[key] + gradient if key in sums else gradient
        if not sums:  # The loss depends on no variable, which optimizers refuse.
            sums = {id(variable.handle): tf.zeros_like(variable) for variable in self.variables}
        pairs = [
            (sums.get(id(variable.handle)), self._given.get(id(variable.handle), variable))
            for variable in self.variables
            if id(variable.handle) in sums or id(variable.handle) in self._given
        ]
        output = self._output
        output.opt.apply_gradients(pairs, *output.apply_gradients_args, **output.apply_gradients_kwargs)


def _distinct(variables: Iterable[tf.Variable]) -> list[tf.Variable]:
    return list({id(variable.handle): variable for variable in variables}.values())


def _without_var_list(
    output: OptimizerFunctionOutput,
) -> tuple[tuple[Any, ...], dict[str, Any], Sequence[Variable] | None]:
    """The further arguments of `compute_gradients`, and the list of variables that was among them."""
    args = output.compute_gradients_args
    kwargs = dict(output.compute_gradients_kwargs)
    if args:
        # The first one behind the loss is the list of variables, which each stage gets its own part of.
        names = ("gate_gradients", "aggregation_method", "colocate_gradients_with_ops", "grad_loss")
        return (), {**dict(zip(names, args[1:], strict=False)), **kwargs}, args[0]
    return (), kwargs, kwargs.pop("var_list", None)


class Accumulation:
    """Adds the gradients of a pass's micro-batches up, each variable's in a type of its own."""

    def __init__(
        self,
        method: GradientAccumulationReductionMethod,
        count: int | tf.Tensor,
        dtype: DTypeOf = None,
        *,
        sum_captured: bool = True,
    ) -> None:
        """Says how."""
        self._method = method
        self._count = count
        self._dtype = dtype
        self._sum_captured = sum_captured

    def zeros(self, variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
        """The accumulators before the first micro-batch."""
        return [tf.zeros(one.shape, one.dtype) for one in self.specs(variables)]

    def specs(self, variables: Sequence[tf.Variable]) -> list[tf.TensorSpec]:
        """Shapes and types of the accumulators."""
        return [tf.TensorSpec(variable.shape, dtype_for(self._dtype, variable)) for variable in variables]

    def add(self, sums: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor], micro_batch: Number) -> list[tf.Tensor]:
        """The accumulators after one more micro-batch."""
        return [
            parts.accumulated(total, gradient, micro_batch, self._count, self._method)
            for total, gradient in zip(sums, gradients, strict=True)
        ]

    def captured(self, before: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The captured gradients after one more micro-batch, whose `gradients` they are."""
        if not self._sum_captured:
            return list(gradients)
        return [total + gradient for total, gradient in zip(before, gradients, strict=True)]


class _UpdateGraph(assembly.CapturingGraph):
    """A graph that may use tensors of the last stage's graph: they become its inputs."""

    def __init__(self, trace: StageTrace) -> None:
        """Makes an empty graph, for an update behind the stage of `trace`."""
        super().__init__("pipeline_update")
        self._trace = trace
        self._here: dict[int, tf.Tensor] = {}
        self.handed: list[tf.Tensor] = []
        self.placeholders: list[tf.Tensor] = []

    def capture(self, tensor: tf.Tensor, name: str | None = None, shape: ShapeLike | None = None) -> tf.Tensor:
        """Gives a tensor of another graph as one of this graph."""
        if getattr(tensor, "graph", None) is not self._trace.graph:
            return super().capture(tensor, name, shape)
        outside = self._trace.outside(tensor)
        if outside is not None:
            return super().capture(outside, name, shape)
        if id(tensor) not in self._here:
            check_static(tensor)
            self._here[id(tensor)] = assembly.placeholder(self, spec_of(tensor), "handed")
            self.handed.append(tensor)
            self.placeholders.append(self._here[id(tensor)])
        return self._here[id(tensor)]


class WeightUpdate:
    """An update that was traced."""

    def __init__(
        self, apply: Callable[[Sequence[tf.Tensor]], None], gradients: Sequence[tf.TensorSpec], trace: StageTrace
    ) -> None:
        """Traces an update."""
        graph = _UpdateGraph(trace)
        graphs.trace_into(graph, lambda *given: apply(given), gradients)
        self.handed = graph.handed
        self._placeholders = [*graph.inputs[: len(gradients)], *graph.placeholders]
        self._function = GraphFunction(graph, self._placeholders, [])

    def alone(self) -> tuple[Callable[..., list[tf.Tensor]], list[tf.TensorSpec]]:
        """The update as a function of gradients and of what is handed to it, to be read and not run; its arguments."""
        specs = [spec_of(one) for one in self._placeholders]
        return lambda *values: self._function.elsewhere(values), specs

    def __call__(self, gradients: Sequence[tf.Tensor], handed: Sequence[tf.Tensor]) -> None:
        """Updates the weights by gradients, with the values that `handed` has."""
        self._function([*gradients, *handed])
