"""The optimizer of a pipeline: which variables it trains, what it does to gradients, and its update."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._base.tensors import dtype_for, tf_variable
from tensorflow_ipu._tensorflow import graphs, old_keras
from tensorflow_ipu._tensorflow.old_keras import take_over_slots
from tensorflow_ipu.feeds import IPUOutfeedQueue
from tensorflow_ipu.ops.gradient_capture import GradientCaptureContext, GradientCaptureTape
from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod, accumulation, update_memory
from tensorflow_ipu.pipelining.stages.part import GraphFunction
from tensorflow_ipu.pipelining.stages.tracing import StageTrace, check_static, placeholder, spec_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensorflow_ipu._base.types import DTypeOf, Number, Optimizer, ShapeLike, Variable

_NAME = "OptimizerFunctionOutput"


class OptimizerKind(enum.Enum):
    """Whose an optimizer is: of `tf.compat.v1.train`, or of a Keras."""

    V1 = enum.auto()
    KERAS = enum.auto()

    @classmethod
    def of(cls, optimizer: object) -> OptimizerKind | None:
        """The kind of an optimizer; None for what is none."""
        keras_optimizer: Any = tf.keras.optimizers.Optimizer
        if isinstance(optimizer, (keras_optimizer, *old_keras.keras_2_optimizers())):
            return cls.KERAS
        return cls.V1 if isinstance(optimizer, tf.compat.v1.train.Optimizer) else None


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
        self._variables: tuple[Variable, ...] = ()
        self._tape: tf.GradientTape | None = None
        self._gradient_capture_context: GradientCaptureContext | None = None
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
    def kind(self) -> OptimizerKind:
        """Whose the optimizer is."""
        return self._kind

    @property
    def is_keras(self) -> bool:
        """Whether the optimizer is one of Keras."""
        return self._kind is not OptimizerKind.V1

    @property
    def opt(self) -> Optimizer:
        """The optimizer."""
        return self._opt

    @opt.setter
    def opt(self, value: Optimizer) -> None:
        kind = OptimizerKind.of(value)
        if kind is None:
            raise TypeError(
                f"`{_NAME}.opt` must be a `tf.compat.v1.train` optimizer or a `tf.keras.optimizers.Optimizer`, but is"
                f" {value!r}"
            )
        self._opt, self._kind = value, kind

    @property
    def loss(self) -> tf.Tensor:
        """The loss."""
        return self._loss

    @loss.setter
    def loss(self, value: tf.Tensor) -> None:
        if not isinstance(value, tf.Tensor):
            raise TypeError(f"`{_NAME}.loss` must be a `tf.Tensor`, but is {value!r}")
        self._loss = value

    def differentiated(self) -> tf.Tensor:
        """The loss, from which gradients come as large as an optimizer wants that scales losses, and divides them itself."""
        loss, optimizer = self._loss, self._opt
        if hasattr(optimizer, "get_unscaled_gradients"):
            scale = optimizer.get_scaled_loss(tf.ones((), loss.dtype))
        else:
            scale = accumulation.scale_of(optimizer, loss)
        if scale is None:
            return loss
        return tf.custom_gradient(lambda value: (tf.identity(value), lambda upstream: upstream * scale))(loss)

    @property
    def compute_gradients_args(self) -> tuple[Any, ...]:
        """Positional arguments of `compute_gradients`."""
        return self._compute_gradients_args

    @compute_gradients_args.setter
    def compute_gradients_args(self, value: tuple[Any, ...] | None) -> None:
        self._compute_gradients_args = _tuple("compute_gradients_args", value)
        self._check_not_keras("compute_gradients_args", value)

    @property
    def compute_gradients_kwargs(self) -> dict[str, Any]:
        """Keyword arguments of `compute_gradients`."""
        return self._compute_gradients_kwargs

    @compute_gradients_kwargs.setter
    def compute_gradients_kwargs(self, value: dict[str, Any] | None) -> None:
        self._compute_gradients_kwargs = _dict("compute_gradients_kwargs", value)
        self._check_not_keras("compute_gradients_kwargs", value)

    @property
    def apply_gradients_args(self) -> tuple[Any, ...]:
        """Positional arguments of `apply_gradients`."""
        return self._apply_gradients_args

    @apply_gradients_args.setter
    def apply_gradients_args(self, value: tuple[Any, ...] | None) -> None:
        self._apply_gradients_args = _tuple("apply_gradients_args", value)

    @property
    def apply_gradients_kwargs(self) -> dict[str, Any]:
        """Keyword arguments of `apply_gradients`."""
        return self._apply_gradients_kwargs

    @apply_gradients_kwargs.setter
    def apply_gradients_kwargs(self, value: dict[str, Any] | None) -> None:
        self._apply_gradients_kwargs = _dict("apply_gradients_kwargs", value)

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variables to train; empty where the tape says, or nothing does."""
        return self._variables

    @variables.setter
    def variables(self, value: Sequence[Variable] | None) -> None:
        if value is not None and not isinstance(value, (tuple, list)):
            raise TypeError(f"`{_NAME}.variables` must be a tuple or a list, but is {value!r}")
        if value and not self.is_keras:
            raise ValueError(
                f"`{_NAME}.variables` goes with a Keras optimizer alone. For {self._opt!r}, write"
                ' `compute_gradients_kwargs={"var_list": variables}`'
            )
        if value and self._tape is not None:
            raise ValueError(f"`{_NAME}.variables` must be empty where `tape` is used, which says the same: give one")
        self._variables = tuple(value or ())

    @property
    def tape(self) -> tf.GradientTape | None:
        """The tape."""
        return self._tape

    @tape.setter
    def tape(self, value: tf.GradientTape | None) -> None:
        if value is not None:
            if not isinstance(value, tf.GradientTape):
                raise TypeError(f"`{_NAME}.tape` must be a `tf.GradientTape`, but is {value!r}")
            if not self.is_keras:
                raise ValueError(f"`{_NAME}.tape` goes with a Keras optimizer alone, and `opt` is {self._opt!r}")
            if self._variables:
                raise ValueError(f"`{_NAME}.tape` may not be used where `variables` is, which says the same: give one")
            if self._gradient_capture_context is not None:
                raise ValueError(f"`{_NAME}.tape` may not be used where `gradient_capture_context` is: give one")
        self._tape = value

    @property
    def gradient_capture_context(self) -> GradientCaptureContext | None:
        """The context that captures gradients."""
        return self._gradient_capture_context

    @gradient_capture_context.setter
    def gradient_capture_context(self, value: GradientCaptureContext | None) -> None:
        if value is not None:
            if not isinstance(value, GradientCaptureContext):
                raise TypeError(
                    f"`{_NAME}.gradient_capture_context` must be a `GradientCaptureContext`, but is {value!r}"
                )
            if self._tape is not None:
                raise ValueError(f"`{_NAME}.gradient_capture_context` may not be used where `tape` is: give one")
        self._gradient_capture_context = value

    @property
    def captured_gradient_outfeed(self) -> IPUOutfeedQueue | None:
        """The queue of the captured gradients."""
        return self._captured_gradient_outfeed

    @captured_gradient_outfeed.setter
    def captured_gradient_outfeed(self, value: IPUOutfeedQueue | None) -> None:
        if value is not None:
            if not isinstance(value, IPUOutfeedQueue):
                raise TypeError(f"`{_NAME}.captured_gradient_outfeed` must be an `IPUOutfeedQueue`, but is {value!r}")
            if self.capturing is None:
                raise ValueError(
                    f"`{_NAME}.captured_gradient_outfeed` needs gradients that are captured: give a"
                    " `gradient_capture_context`, or a `GradientCaptureTape` as `tape`"
                )
        self._captured_gradient_outfeed = value

    @property
    def capturing(self) -> GradientCaptureContext | None:
        """What captures gradients: the context, or the tape if it does so too."""
        if self._gradient_capture_context is not None:
            return self._gradient_capture_context
        return self._tape if isinstance(self._tape, GradientCaptureTape) else None

    def _check_not_keras(self, name: str, value: object) -> None:
        if value and self.is_keras:
            raise ValueError(
                f"`{_NAME}.{name}` goes with a `tf.compat.v1.train` optimizer alone: the Keras optimizer {self._opt!r} has"
                " no `compute_gradients`"
            )


def _tuple(name: str, value: Any) -> tuple[Any, ...]:
    if value is not None and not isinstance(value, tuple):
        raise TypeError(f"`{_NAME}.{name}` must be a tuple, but is {value!r}")
    return value or ()


def _dict(name: str, value: Any) -> dict[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"`{_NAME}.{name}` must be a dict, but is {value!r}")
    return dict(value or {})


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
        if chosen is None:
            chosen = output.variables or (output.tape.watched_variables() if output.tape is not None else None)
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
        """Passes the gradients of one micro-batch through the optimizer's `compute_gradients`."""
        # TensorFlow's own `compute_gradients` changes nothing, and takes 10 ms a stage.
        if self._output.kind is not OptimizerKind.V1 or not pairs or self._only_differentiates():
            return pairs
        # It takes a loss, so it is given one whose gradients are these, which are constants in it.
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
        elif hasattr(optimizer, "build") and not getattr(optimizer, "built", False):  # Those of 2021 have none.
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
        if hasattr(output.opt, "get_unscaled_gradients"):
            given, variables = zip(*pairs, strict=True)
            pairs = list(zip(output.opt.get_unscaled_gradients(given), variables, strict=True))
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
        # The first one after the loss is the list of variables, which each stage gets its own part of.
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
            accumulation.accumulated(total, gradient, micro_batch, self._count, self._method)
            for total, gradient in zip(sums, gradients, strict=True)
        ]

    def captured(self, before: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The captured gradients after one more micro-batch, whose `gradients` they are."""
        if not self._sum_captured:
            return list(gradients)
        return [total + gradient for total, gradient in zip(before, gradients, strict=True)]


class _UpdateGraph(graphs.FunctionGraph):
    """A graph that may use tensors of the last stage's graph: they become its inputs."""

    def __init__(self, trace: StageTrace) -> None:
        """Makes an empty graph, for an update after the stage of `trace`."""
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
            self._here[id(tensor)] = placeholder(self, spec_of(tensor), "handed")
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
