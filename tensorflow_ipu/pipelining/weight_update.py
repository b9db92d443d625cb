"""The optimizer of a pipeline: which variables it trains, what it does to gradients, and its update."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

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
_Set = TypeVar("_Set")  # What an attribute may be set to.
_Kept = TypeVar("_Kept")


def _is_keras(optimizer: object) -> bool:
    keras_optimizer: Any = tf.keras.optimizers.Optimizer
    return isinstance(optimizer, (keras_optimizer, *old_keras.keras_2_optimizers()))


class _Checked(Generic[_Set, _Kept]):
    """An attribute of one of the `kinds`. `check` checks values as they are set, and returns what is kept."""

    def __init__(self, check: Callable[[Any, _Set], _Kept], words: str, kinds: tuple[type, ...]) -> None:
        self._check, self._words, self._kinds = check, words, kinds
        self.__doc__ = check.__doc__

    def __get__(self, owner: object, kind: object = None) -> _Kept:
        found: Any = self if owner is None else vars(owner)[self._check.__name__]
        return found

    def __set__(self, owner: object, value: _Set) -> None:
        name = self._check.__name__
        if not isinstance(value, self._kinds):
            raise TypeError(f"`{_NAME}.{name}` must be {self._words}, but is {value!r}")
        vars(owner)[name] = self._check(owner, value)


def _checked(words: str, *kinds: type) -> Callable[[Callable[[Any, _Set], _Kept]], _Checked[_Set, _Kept]]:
    return lambda check: _Checked(check, words, kinds)


class OptimizerFunctionOutput:
    """An optimizer, and the loss that it is to minimise; each attribute is checked when it is set."""

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
        # They are checked against each other.
        vars(self).update(variables=(), tape=None, gradient_capture_context=None)
        self.opt = opt
        self.loss = loss
        self.compute_gradients_args = compute_gradients_args
        self.compute_gradients_kwargs = compute_gradients_kwargs
        self.apply_gradients_args = apply_gradients_args
        self.apply_gradients_kwargs = apply_gradients_kwargs
        self.variables = variables
        self.tape = tape
        self.gradient_capture_context = gradient_capture_context
        self.captured_gradient_outfeed = captured_gradient_outfeed

    @property
    def is_keras(self) -> bool:
        """Whether the optimizer is one of Keras."""
        return _is_keras(self.opt)

    @_checked("an optimizer", object)
    def opt(self, value: Optimizer) -> Optimizer:
        """The optimizer."""
        if not isinstance(value, tf.compat.v1.train.Optimizer) and not _is_keras(value):
            kinds = "a `tf.compat.v1.train` optimizer or a `tf.keras.optimizers.Optimizer`"
            raise TypeError(f"`{_NAME}.opt` must be {kinds}, but is {value!r}")
        return value

    @_checked("a `tf.Tensor`", tf.Tensor)
    def loss(self, value: tf.Tensor) -> tf.Tensor:
        """The loss."""
        return value

    def differentiated(self) -> tf.Tensor:
        """The loss, from which gradients come as large as an optimizer wants that scales losses, and divides them itself."""
        loss, optimizer = self.loss, self.opt
        if hasattr(optimizer, "get_unscaled_gradients"):
            scale = optimizer.get_scaled_loss(tf.ones((), loss.dtype))
        else:
            scale = accumulation.scale_of(optimizer, loss)
        if scale is None:
            return loss
        return tf.custom_gradient(lambda value: (tf.identity(value), lambda upstream: upstream * scale))(loss)

    @_checked("a tuple", tuple, NoneType)
    def compute_gradients_args(self, value: tuple[Any, ...] | None) -> tuple[Any, ...]:
        """Positional arguments of `compute_gradients`."""
        self._check_not_keras("compute_gradients_args", value)
        return value or ()

    @_checked("a dict", Mapping, NoneType)
    def compute_gradients_kwargs(self, value: dict[str, Any] | None) -> dict[str, Any]:
        """Keyword arguments of `compute_gradients`."""
        self._check_not_keras("compute_gradients_kwargs", value)
        return dict(value or {})

    @_checked("a tuple", tuple, NoneType)
    def apply_gradients_args(self, value: tuple[Any, ...] | None) -> tuple[Any, ...]:
        """Positional arguments of `apply_gradients`."""
        return value or ()

    @_checked("a dict", Mapping, NoneType)
    def apply_gradients_kwargs(self, value: dict[str, Any] | None) -> dict[str, Any]:
        """Keyword arguments of `apply_gradients`."""
        return dict(value or {})

    @_checked("a tuple or a list", tuple, list, NoneType)
    def variables(self, value: Sequence[Variable] | None) -> tuple[Variable, ...]:
        """The variables to train; empty where the tape says, or nothing does."""
        if value and not self.is_keras:
            raise ValueError(
                f"`{_NAME}.variables` goes with a Keras optimizer alone. For {self.opt!r}, write"
                ' `compute_gradients_kwargs={"var_list": variables}`'
            )
        if value and self.tape is not None:
            raise ValueError(f"`{_NAME}.variables` must be empty where `tape` is used, which says the same: give one")
        return tuple(value or ())

    @_checked("a `tf.GradientTape`", tf.GradientTape, NoneType)
    def tape(self, value: tf.GradientTape | None) -> tf.GradientTape | None:
        """The tape."""
        if value is not None and not self.is_keras:
            raise ValueError(f"`{_NAME}.tape` goes with a Keras optimizer alone, and `opt` is {self.opt!r}")
        if value is not None and self.variables:
            raise ValueError(f"`{_NAME}.tape` may not be used where `variables` is, which says the same: give one")
        if value is not None and self.gradient_capture_context is not None:
            raise ValueError(f"`{_NAME}.tape` may not be used where `gradient_capture_context` is: give one")
        return value

    @_checked("a `GradientCaptureContext`", GradientCaptureContext, NoneType)
    def gradient_capture_context(self, value: GradientCaptureContext | None) -> GradientCaptureContext | None:
        """The context that captures gradients."""
        if value is not None and self.tape is not None:
            raise ValueError(f"`{_NAME}.gradient_capture_context` may not be used where `tape` is: give one")
        return value

    @_checked("an `IPUOutfeedQueue`", IPUOutfeedQueue, NoneType)
    def captured_gradient_outfeed(self, value: IPUOutfeedQueue | None) -> IPUOutfeedQueue | None:
        """The queue of the captured gradients."""
        if value is not None and self.capturing is None:
            raise ValueError(
                f"`{_NAME}.captured_gradient_outfeed` needs gradients that are captured: give a"
                " `gradient_capture_context`, or a `GradientCaptureTape` as `tape`"
            )
        return value

    @property
    def capturing(self) -> GradientCaptureContext | None:
        """What captures gradients: the context, or the tape if it does so too."""
        tape = self.tape if isinstance(self.tape, GradientCaptureTape) else None
        return self.gradient_capture_context or tape

    def _check_not_keras(self, name: str, value: object) -> None:
        if value and self.is_keras:
            raise ValueError(
                f"`{_NAME}.{name}` goes with a `tf.compat.v1.train` optimizer alone: the Keras optimizer {self.opt!r} has"
                " no `compute_gradients`"
            )


# Of a variable that is trained: for each place where optimizers are made, their slots.
_ATTRIBUTE = "_ipu_slots_of_pipelines"


def _take_over(
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
    """Applies what a pipeline's optimizer function returned to the variables of its stages."""

    def __init__(
        self,
        output: OptimizerFunctionOutput,
        function: Callable[..., OptimizerFunctionOutput],
        stages: Sequence[TracedStage],
    ) -> None:
        """Finds the variables to train."""
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
    """The further arguments of `compute_gradients`, and the list of variables that was among them."""
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
