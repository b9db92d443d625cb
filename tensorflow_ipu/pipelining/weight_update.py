"""The optimizer of a pipeline: which variables it trains, what it does to gradients, and its update."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._base.tensors import dtype_for, tf_variable
from tensorflow_ipu._tensorflow import graphs, old_keras
from tensorflow_ipu._tensorflow.old_keras import take_over_slots
from tensorflow_ipu.feeds import IPUOutfeedQueue
from tensorflow_ipu.ops.gradient_capture import GradientCaptureContext, GradientCaptureTape
from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod, accumulation, update_memory
from tensorflow_ipu.pipelining.stage_graphs import LossCaptureGraph, StageGraph, spec_of
from tensorflow_ipu.pipelining.traced_stage import Captured, GraphFunction, Pairs, TracedStage, distinct

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import DTypeOf, Number, Optimizer, Variable

_NAME = "OptimizerFunctionOutput"


def _is_keras(optimizer: object) -> bool:
    keras_optimizer: Any = tf.keras.optimizers.Optimizer
    return isinstance(optimizer, (keras_optimizer, *old_keras.keras_2_optimizers()))


# What the attributes of an `OptimizerFunctionOutput` must be.
_ATTRIBUTES: dict[str, tuple[str, tuple[type, ...]]] = {
    "opt": ("an optimizer", (object,)),
    "loss": ("a `tf.Tensor`", (tf.Tensor,)),
    "compute_gradients_args": ("a tuple", (tuple, NoneType)),
    "compute_gradients_kwargs": ("a dict", (Mapping, NoneType)),
    "apply_gradients_args": ("a tuple", (tuple, NoneType)),
    "apply_gradients_kwargs": ("a dict", (Mapping, NoneType)),
    "variables": ("a tuple or a list", (tuple, list, NoneType)),
    "tape": ("a `tf.GradientTape`", (tf.GradientTape, NoneType)),
    "gradient_capture_context": ("a `GradientCaptureContext`", (GradientCaptureContext, NoneType)),
    "captured_gradient_outfeed": ("an `IPUOutfeedQueue`", (IPUOutfeedQueue, NoneType)),
}
# Of attributes that say the same: those that may not be set beside one.
_EXCLUDED = {
    "variables": ("tape",),
    "tape": ("variables", "gradient_capture_context"),
    "gradient_capture_context": ("tape",),
}


class OptimizerFunctionOutput:
    """An optimizer, and the loss that it is to minimise; each attribute is checked when it is set."""

    __slots__ = (*_ATTRIBUTES, "__dict__", "__weakref__")  # Subclasses and users may set others.

    opt: Optimizer
    loss: tf.Tensor
    compute_gradients_args: tuple[Any, ...]
    compute_gradients_kwargs: dict[str, Any]
    apply_gradients_args: tuple[Any, ...]
    apply_gradients_kwargs: dict[str, Any]
    variables: tuple[Variable, ...]
    tape: tf.GradientTape | None
    gradient_capture_context: GradientCaptureContext | None
    captured_gradient_outfeed: IPUOutfeedQueue | None

    def __init__(
        self,
        opt: Optimizer,
        loss: tf.Tensor,
        compute_gradients_args: tuple[Any, ...] | None = None,
        compute_gradients_kwargs: dict[str, Any] | None = None,
        apply_gradients_args: tuple[Any, ...] | None = None,
        apply_gradients_kwargs: dict[str, Any] | None = None,
        variables: Sequence[Variable] | None = None,
        tape: tf.GradientTape | None = None,
        gradient_capture_context: GradientCaptureContext | None = None,
        captured_gradient_outfeed: IPUOutfeedQueue | None = None,
    ) -> None:
        """Takes the optimizer and the loss of a micro-batch.

        Args:
          opt: A `tf.compat.v1.train` optimizer, a Keras optimizer, or one of `tensorflow.python.keras.optimizer_v2`. Of the
            arguments of the optimizer function it uses those of the last micro-batch of a pass, in `compute_gradients` of each.
          loss: The loss of a micro-batch, a tensor.
          compute_gradients_args: Arguments of `opt.compute_gradients` after the loss. For `tf.compat.v1.train` alone.
          compute_gradients_kwargs: Its further keyword arguments, likewise.
          apply_gradients_args: Further arguments of `opt.apply_gradients`, after the gradients and variables.
          apply_gradients_kwargs: Its further keyword arguments.
          variables: The variables to train, with a Keras optimizer; all trainable ones of the stages if no `tape` says either.
          tape: A tape that watches the variables to train, in place of `variables`; the pipeline computes the gradients.
          gradient_capture_context: The context by which the stages capture gradients. A `GradientCaptureTape` as `tape` is one.
          captured_gradient_outfeed: The queue that gets the captured gradients of each pass, a dict by their tags.

        Raises:
          TypeError: A value is of a wrong kind.
          ValueError: Two values do not go together.
        """
        given = locals()
        for name in _ATTRIBUTES:
            setattr(self, name, given[name])

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, self._checked(name, value) if name in _ATTRIBUTES else value)

    def _checked(self, name: str, value: Any) -> Any:
        words, kinds = _ATTRIBUTES[name]
        if name == "opt" and not isinstance(value, tf.compat.v1.train.Optimizer) and not _is_keras(value):
            words, kinds = "a `tf.compat.v1.train` optimizer or a `tf.keras.optimizers.Optimizer`", ()
        if not isinstance(value, kinds):
            raise TypeError(f"`{_NAME}.{name}` must be {words}, but is {value!r}")
        if name.endswith("kwargs"):
            value = dict(value or {})
        elif name.endswith(("args", "variables")):
            value = tuple(value or ())
        fault = self._fault(name) if name not in ("opt", "loss") and value else None
        if fault:
            raise ValueError(f"`{_NAME}.{name}` {fault}")
        return value

    @property
    def is_keras(self) -> bool:
        """Whether the optimizer is one of Keras."""
        return _is_keras(self.opt)

    def differentiated(self) -> tf.Tensor:
        """Returns the loss, with gradients scaled for an optimizer that scales losses, and divides gradients itself."""
        loss, optimizer = self.loss, self.opt
        if hasattr(optimizer, "get_unscaled_gradients"):
            scale = optimizer.get_scaled_loss(tf.ones((), loss.dtype))
        else:
            scale = accumulation.scale_of(optimizer, loss)
        if scale is None:
            return loss
        return tf.custom_gradient(lambda value: (tf.identity(value), lambda upstream: upstream * scale))(loss)

    @property
    def capturing(self) -> GradientCaptureContext | None:
        """The context that captures gradients, or the tape if it does."""
        tape = self.tape if isinstance(self.tape, GradientCaptureTape) else None
        return self.gradient_capture_context or tape

    def _fault(self, name: str) -> str | None:
        """Returns what is wrong with setting an attribute, beside those that are set."""
        if name.startswith("compute_gradients") and self.is_keras:
            return (
                f"goes with a `tf.compat.v1.train` optimizer alone: the Keras optimizer {self.opt!r} has no"
                " `compute_gradients`"
            )
        if name in ("variables", "tape") and not self.is_keras:
            words = f"goes with a Keras optimizer alone, and `opt` is {self.opt!r}"
            others = '; write `compute_gradients_kwargs={"var_list": variables}`'
            return words + others * (name == "variables")
        for other in _EXCLUDED.get(name, ()):
            if getattr(self, other, None):
                return f"may not be used where `{other}` is: give one"
        if name == "captured_gradient_outfeed" and self.capturing is None:
            return (
                "needs gradients that are captured: give a `gradient_capture_context`, or a `GradientCaptureTape` as"
                " `tape`"
            )
        return None


# Of a variable that is trained: for each place where optimizers are made, their slots.
_ATTRIBUTE = "_ipu_slots_of_pipelines"


def _take_over(
    optimizer: tf.compat.v1.train.Optimizer,
    function: Callable[..., object],
    stage: tf.Graph,
    variables: Sequence[tf.Variable],
) -> None:
    """Gives an optimizer the slots of the one that the trace before made at the same point, if it was made in this trace."""
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
    """Yields an optimizer and those that it wraps."""
    yield optimizer
    for value in vars(optimizer).values():
        if isinstance(value, tf.compat.v1.train.Optimizer):
            yield from _chain(value)


class Training:
    """Applies what a pipeline's optimizer function returned to the variables of its stages."""

    def __init__(
        self,
        output: OptimizerFunctionOutput,
        function: Callable[..., OptimizerFunctionOutput],
        stages: Sequence[TracedStage],
    ) -> None:
        self._output = output
        self._function = function
        self._args, self._kwargs, chosen = _without_var_list(output)
        used = distinct([variable for stage in stages for variable in stage.used_variables])
        if chosen is None:
            chosen = output.variables or (output.tape.watched_variables() if output.tape is not None else None)
        # Keras has variables of its own, around those of TensorFlow; its optimizers are given back what they gave.
        self._given = {id(tf_variable(variable).handle): variable for variable in chosen or ()}
        if chosen:
            self.variables = distinct([tf_variable(variable) for variable in chosen])
        else:
            self.variables = [variable for variable in used if variable.trainable]
        handles = {id(variable.handle) for variable in used}
        if not any(id(variable.handle) in handles for variable in self.variables):
            raise RuntimeError(
                "No variables to optimize: no stage of the pipeline uses a trainable variable"
                + (" that `OptimizerFunctionOutput` names" if chosen else "")
                + ". Use weights in the stages, or leave `optimizer_function` out to infer alone"
            )

    def mapped(self, pairs: list[tuple[tf.Tensor, tf.Variable]]) -> tuple[Pairs, Captured]:
        """Passes the gradients of one micro-batch through the optimizer's `compute_gradients`.

        Returns the gradients to accumulate, and by their tags those that were captured last.
        """
        capturing = self._output.capturing
        captured = {} if capturing is None else capturing.captured_gradients
        # TensorFlow's own `compute_gradients` changes nothing, and takes 10 ms a stage.
        if self._output.is_keras or not pairs or self._only_differentiates():
            return pairs, captured
        # It takes a loss, so it is given one whose gradients are these, which are constants in it.
        products = [tf.reduce_sum(variable * tf.stop_gradient(gradient)) for gradient, variable in pairs]
        loss = tf.add_n([tf.cast(product, products[0].dtype) for product in products])
        variables = [variable for _, variable in pairs]
        mapped = self._output.opt.compute_gradients(loss, *self._args, var_list=variables, **self._kwargs)
        gradients = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient, _ in mapped]
        return list(zip(gradients, (variable for _, variable in mapped), strict=True)), captured

    def _only_differentiates(self) -> bool:
        """Returns True if the optimizer has TensorFlow's own `compute_gradients`, and it is called without options."""
        method = getattr(self._output.opt.compute_gradients, "__func__", None)
        plain = tf.compat.v1.train.Optimizer.compute_gradients
        return method is plain and not self._args and not self._kwargs

    def enqueue_captured(self, captured: Captured) -> None:
        """Enqueues the captured gradients of a pass."""
        queue = self._output.captured_gradient_outfeed
        if queue is not None and captured:
            queue.enqueue(captured)

    def prepare(self, stage: tf.Graph) -> None:
        """Creates the optimizer's variables, ahead of any loop; `stage` computes the loss."""
        optimizer, variables = self._output.opt, self.variables
        if not self._output.is_keras:
            _take_over(optimizer, self._function, stage, variables)
        elif hasattr(optimizer, "build") and not getattr(optimizer, "built", False):  # Those of 2021 have none.
            optimizer.build([self._given.get(id(variable.handle), variable) for variable in variables])

    def state_bytes(self) -> int:
        """Returns the bytes that the optimizer keeps beside the weights; 0 if they are unknown."""
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
        if hasattr(output.opt, "get_unscaled_gradients"):
            given, variables = zip(*pairs, strict=True)
            pairs = list(zip(output.opt.get_unscaled_gradients(given), variables, strict=True))
        output.opt.apply_gradients(pairs, *output.apply_gradients_args, **output.apply_gradients_kwargs)


def _without_var_list(
    output: OptimizerFunctionOutput,
) -> tuple[tuple[Any, ...], dict[str, Any], Sequence[Variable] | None]:
    """Returns the further arguments of `compute_gradients`, and the list of variables that was among them."""
    args = output.compute_gradients_args
    kwargs = dict(output.compute_gradients_kwargs)
    if args:
        # The first one after the loss is the list of variables, which each stage gets its own part of.
        names = ("gate_gradients", "aggregation_method", "colocate_gradients_with_ops", "grad_loss")
        return (), {**dict(zip(names, args[1:], strict=False)), **kwargs}, args[0]
    return (), kwargs, kwargs.pop("var_list", None)


@dataclass(frozen=True)
class Accumulation:
    """How the gradients of a pass's micro-batches are added up."""

    method: GradientAccumulationReductionMethod
    count: int | tf.Tensor
    dtype: DTypeOf = None
    sum_captured: bool = True

    def specs(self, variables: Sequence[tf.Variable]) -> list[tf.TensorSpec]:
        """Returns shapes and types of the accumulators."""
        return [tf.TensorSpec(variable.shape, dtype_for(self.dtype, variable)) for variable in variables]

    def add(self, sums: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor], micro_batch: Number) -> list[tf.Tensor]:
        """Returns the accumulators after one more micro-batch."""
        return [
            accumulation.accumulated(total, gradient, micro_batch, self.count, self.method)
            for total, gradient in zip(sums, gradients, strict=True)
        ]

    def captured(self, before: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the captured gradients after one more micro-batch."""
        if not self.sum_captured:
            return list(gradients)
        return [total + gradient for total, gradient in zip(before, gradients, strict=True)]


class WeightUpdate:
    """An update of the weights that was traced; `loss` is the graph of the stage that computes the loss."""

    def __init__(
        self, apply: Callable[[Sequence[tf.Tensor]], None], gradients: Sequence[tf.TensorSpec], loss: StageGraph
    ) -> None:
        graph = LossCaptureGraph("pipeline_update", loss)
        graphs.trace_into(graph, lambda *given: apply(given), gradients)
        self.handed = [tensor for tensor, _ in graph.carried]
        self._placeholders = [*graph.inputs[: len(gradients)], *(here for _, here in graph.carried)]
        self._function = GraphFunction(graph, self._placeholders, [])

    def alone(self) -> tuple[Callable[..., list[tf.Tensor]], list[tf.TensorSpec]]:
        """Returns the update as a function of gradients and of `handed` values, to be read and not run; its arguments."""
        return self._function.elsewhere, list(map(spec_of, self._placeholders))

    def __call__(self, gradients: Sequence[tf.Tensor], handed: Sequence[tf.Tensor]) -> None:
        """Updates the weights by gradients; `handed` has values of the tensors of that name."""
        self._function([*gradients, *handed])
