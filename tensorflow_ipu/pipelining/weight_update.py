"""The optimizer of a pipeline: the variables that it trains, the accumulation of their gradients, and the update."""

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


# The attributes of an `OptimizerFunctionOutput`, with a description of their types and the types.
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
# For an attribute, the other attributes that may not be set with it.
_EXCLUDED = {
    "variables": ("tape",),
    "tape": ("variables", "gradient_capture_context"),
    "gradient_capture_context": ("tape",),
}


class OptimizerFunctionOutput:
    """An optimizer and the loss that it minimizes. Each attribute is checked when it is set."""

    __slots__ = (*_ATTRIBUTES, "__dict__", "__weakref__")  # Subclasses and users may set other attributes.

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
        """Creates an output of an optimizer function.

        Args:
          opt: A `tf.compat.v1.train` optimizer, a Keras optimizer, or an optimizer of
            `tensorflow.python.keras.optimizer_v2`. If the optimizer uses arguments of the optimizer
            function, `compute_gradients` gets their values for each micro-batch, and the update gets their values for
            the last micro-batch of a pass of the pipeline.
          loss: The loss of a micro-batch, a tensor.
          compute_gradients_args: Arguments of `opt.compute_gradients` after the loss. For `tf.compat.v1.train` only.
          compute_gradients_kwargs: Further keyword arguments of `opt.compute_gradients`. For `tf.compat.v1.train` only.
          apply_gradients_args: Further arguments of `opt.apply_gradients`, after the gradients and variables.
          apply_gradients_kwargs: Further keyword arguments of `opt.apply_gradients`.
          variables: The variables to train, with a Keras optimizer. If both this and `tape` are omitted, all trainable
            variables of the stages are trained.
          tape: A tape that watches the variables to train, in place of `variables`. The pipeline computes the
            gradients.
          gradient_capture_context: The context with which the stages capture gradients; not needed if `tape` is a
            `GradientCaptureTape`.
          captured_gradient_outfeed: The queue that gets the captured gradients of each pass of the pipeline, a dict by
            tag.

        Raises:
          TypeError: A value is of the wrong type.
          ValueError: Two values exclude each other.
        """
        values = locals()
        for name in _ATTRIBUTES:
            setattr(self, name, values[name])

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, self._checked(name, value) if name in _ATTRIBUTES else value)

    def _checked(self, name: str, value: Any) -> Any:
        expected, types = _ATTRIBUTES[name]
        if name == "opt" and not isinstance(value, tf.compat.v1.train.Optimizer) and not _is_keras(value):
            expected, types = "a `tf.compat.v1.train` optimizer or a `tf.keras.optimizers.Optimizer`", ()
        if not isinstance(value, types):
            raise TypeError(f"`{_NAME}.{name}` must be {expected}, but is {value!r}")
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
        """True for a Keras optimizer."""
        return _is_keras(self.opt)

    def differentiated(self) -> tf.Tensor:
        """Returns the loss to differentiate. If the optimizer scales losses, only the gradients of the loss are scaled."""
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
        """The context that captures gradients: `gradient_capture_context`, or the tape if it captures; else None."""
        tape = self.tape if isinstance(self.tape, GradientCaptureTape) else None
        return self.gradient_capture_context or tape

    def _fault(self, name: str) -> str | None:
        """Returns the error of an attribute that conflicts with the attributes set before, or None."""
        if name.startswith("compute_gradients") and self.is_keras:
            return (
                f"needs a `tf.compat.v1.train` optimizer: the Keras optimizer {self.opt!r} has no `compute_gradients`"
            )
        if name in ("variables", "tape") and not self.is_keras:
            message = f"needs a Keras optimizer, but `opt` is {self.opt!r}"
            hint = '; write `compute_gradients_kwargs={"var_list": variables}`'
            return message + hint if name == "variables" else message
        for excluded in _EXCLUDED.get(name, ()):
            if getattr(self, excluded, None):
                return f"cannot be set together with `{excluded}`: set one of them"
        if name == "captured_gradient_outfeed" and self.capturing is None:
            return "needs captured gradients: set `gradient_capture_context`, or set `tape` to a `GradientCaptureTape`"
        return None


# The attribute of a trained variable with the slots of optimizers, by the place in the code that creates the optimizer.
_ATTRIBUTE = "_ipu_slots_of_pipelines"


def _reuse_slots(
    optimizer: tf.compat.v1.train.Optimizer,
    function: Callable[..., object],
    stage: tf.Graph,
    variables: Sequence[tf.Variable],
) -> None:
    """Lets an optimizer that was created in this trace use the slots of its predecessor in the previous trace.

    An optimizer function creates an optimizer in each trace. Without this, momentum would restart from zero. The
    predecessor is the optimizer of the same class that the same optimizer function created. `stage` is the graph of the
    loss: an optimizer that holds tensors of this graph was created in this trace.
    """
    # In a graph of TensorFlow 1, each program is traced once and has its own variables.
    if not tf.compat.v1.executing_eagerly_outside_functions():
        return
    chain = list(_wrapped(optimizer))
    if not any(getattr(value, "graph", None) is stage for inner in chain for value in vars(inner).values()):
        return
    owner = variables[0]
    slots = vars(owner).setdefault(_ATTRIBUTE, {})
    code = getattr(inspect.unwrap(function), "__code__", None)
    for depth, inner in enumerate(chain):
        take_over_slots(inner, slots, (code, depth, type(inner)))


def _wrapped(optimizer: tf.compat.v1.train.Optimizer) -> Iterator[tf.compat.v1.train.Optimizer]:
    """Yields an optimizer and all optimizers that it wraps."""
    yield optimizer
    for value in vars(optimizer).values():
        if isinstance(value, tf.compat.v1.train.Optimizer):
            yield from _wrapped(value)


class Training:
    """The training of the variables of a pipeline's stages with the output of its optimizer function."""

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
        # The variables that were passed. Keras wraps TensorFlow's variables in its own, and its optimizers need these.
        self._original = {id(tf_variable(variable).handle): variable for variable in chosen or ()}
        if chosen:
            self.variables = distinct([tf_variable(variable) for variable in chosen])
        else:
            self.variables = [variable for variable in used if variable.trainable]
        handles = {id(variable.handle) for variable in used}
        if not any(id(variable.handle) in handles for variable in self.variables):
            raise RuntimeError(
                "No variables to optimize: no stage of the pipeline uses a trainable variable"
                + (" that `OptimizerFunctionOutput` names" if chosen else "")
                + ". Use weights in the stages, or omit `optimizer_function` for inference only"
            )

    def mapped(self, pairs: list[tuple[tf.Tensor, tf.Variable]]) -> tuple[Pairs, Captured]:
        """Passes the gradients of one micro-batch through the optimizer's `compute_gradients`.

        Returns:
          The gradients to accumulate, and the captured gradients by tag.
        """
        capturing = self._output.capturing
        captured = {} if capturing is None else capturing.captured_gradients
        # TensorFlow's own `compute_gradients` changes nothing, and takes 10 ms a stage.
        if self._output.is_keras or not pairs or self._only_differentiates():
            return pairs, captured
        # `compute_gradients` takes a loss. The gradients of this loss are the gradients of the micro-batch:
        # d sum(variable * gradient) / d variable = gradient.
        products = [tf.reduce_sum(variable * tf.stop_gradient(gradient)) for gradient, variable in pairs]
        loss = tf.add_n([tf.cast(product, products[0].dtype) for product in products])
        variables = [variable for _, variable in pairs]
        mapped = self._output.opt.compute_gradients(loss, *self._args, var_list=variables, **self._kwargs)
        gradients = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient, _ in mapped]
        return list(zip(gradients, (variable for _, variable in mapped), strict=True)), captured

    def _only_differentiates(self) -> bool:
        """Returns True if the optimizer has TensorFlow's own `compute_gradients`, called without further arguments."""
        method = getattr(self._output.opt.compute_gradients, "__func__", None)
        original = tf.compat.v1.train.Optimizer.compute_gradients
        return method is original and not self._args and not self._kwargs

    def enqueue_captured(self, captured: Captured) -> None:
        """Enqueues the captured gradients of a pass of the pipeline."""
        queue = self._output.captured_gradient_outfeed
        if queue is not None and captured:
            queue.enqueue(captured)

    def prepare(self, stage: tf.Graph) -> None:
        """Creates the optimizer's variables before any loop; `stage` is the graph that computes the loss."""
        optimizer, variables = self._output.opt, self.variables
        if not self._output.is_keras:
            _reuse_slots(optimizer, self._function, stage, variables)
        elif hasattr(optimizer, "build") and not getattr(optimizer, "built", False):  # Optimizers of 2021 lack `build`.
            optimizer.build([self._original.get(id(variable.handle), variable) for variable in variables])

    def state_bytes(self) -> int:
        """Returns the size of the optimizer's variables in bytes; 0 if it is unknown."""
        try:
            memory = update_memory(self._output.opt, ())
        except TypeError:
            return 0
        return memory.state_on_chip + memory.state_off_chip

    def update(self, gradients: Sequence[tuple[tf.Tensor, tf.Variable]]) -> None:
        """Updates the variables with accumulated gradients. Gradients of a variable of several stages are summed."""
        sums: dict[int, tf.Tensor] = {}
        for gradient, variable in gradients:
            key = id(variable.handle)
            sums[key] = sums[key] + gradient if key in sums else gradient
        if not sums:  # Optimizers reject an empty list of gradients: pass zeros.
            sums = {id(variable.handle): tf.zeros_like(variable) for variable in self.variables}
        pairs = [
            (sums.get(id(variable.handle)), self._original.get(id(variable.handle), variable))
            for variable in self.variables
            if id(variable.handle) in sums or id(variable.handle) in self._original
        ]
        output = self._output
        if hasattr(output.opt, "get_unscaled_gradients"):
            scaled, variables = zip(*pairs, strict=True)
            pairs = list(zip(output.opt.get_unscaled_gradients(scaled), variables, strict=True))
        output.opt.apply_gradients(pairs, *output.apply_gradients_args, **output.apply_gradients_kwargs)


def _without_var_list(
    output: OptimizerFunctionOutput,
) -> tuple[tuple[Any, ...], dict[str, Any], Sequence[Variable] | None]:
    """Returns the arguments of `compute_gradients` without `var_list`, and `var_list` or None."""
    args = output.compute_gradients_args
    kwargs = dict(output.compute_gradients_kwargs)
    if args:
        # The first argument after the loss is the list of variables. Each stage passes its own variables in its place.
        names = ("gate_gradients", "aggregation_method", "colocate_gradients_with_ops", "grad_loss")
        return (), {**dict(zip(names, args[1:], strict=False)), **kwargs}, args[0]
    return (), kwargs, kwargs.pop("var_list", None)


@dataclass(frozen=True)
class Accumulation:
    """The accumulation of the gradients of all micro-batches of a pass of the pipeline.

    Attributes:
      method: The reduction method.
      count: The number of micro-batches.
      dtype: The type of accumulators: None for that of the variable, a dtype, or a function from a variable to a dtype.
      sum_captured: True to sum captured gradients, False to use those of the last micro-batch.
    """

    method: GradientAccumulationReductionMethod
    count: int | tf.Tensor
    dtype: DTypeOf = None
    sum_captured: bool = True

    def specs(self, variables: Sequence[tf.Variable]) -> list[tf.TensorSpec]:
        """Returns the specs of the accumulators."""
        return [tf.TensorSpec(variable.shape, dtype_for(self.dtype, variable)) for variable in variables]

    def add(self, sums: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor], micro_batch: Number) -> list[tf.Tensor]:
        """Returns the accumulators after one more micro-batch."""
        return [
            accumulation.accumulated(total, gradient, micro_batch, self.count, self.method)
            for total, gradient in zip(sums, gradients, strict=True)
        ]

    def captured(self, sums: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the captured gradients after one more micro-batch."""
        if not self.sum_captured:
            return list(gradients)
        return [total + gradient for total, gradient in zip(sums, gradients, strict=True)]


class WeightUpdate:
    """A traced weight update. `loss` is the graph of the stage that computes the loss.

    Attributes:
      handed: The tensors of `loss` that the update uses.
    """

    def __init__(
        self, apply: Callable[[Sequence[tf.Tensor]], None], gradients: Sequence[tf.TensorSpec], loss: StageGraph
    ) -> None:
        graph = LossCaptureGraph("pipeline_update", loss)
        graphs.trace_into(graph, lambda *values: apply(values), gradients)
        self.handed = [tensor for tensor, _ in graph.carried]
        self._placeholders = [*graph.inputs[: len(gradients)], *(inner for _, inner in graph.carried)]
        self._function = GraphFunction(graph, self._placeholders, [])

    def alone(self) -> tuple[Callable[..., list[tf.Tensor]], list[tf.TensorSpec]]:
        """Returns the update as a function for analysis, and the specs of its arguments."""
        return self._function.elsewhere, list(map(spec_of, self._placeholders))

    def __call__(self, gradients: Sequence[tf.Tensor], handed: Sequence[tf.Tensor]) -> None:
        """Updates the weights, given the gradients and the values of the `handed` tensors."""
        self._function([*gradients, *handed])
