"""`OptimizerFunctionOutput`: what a pipeline's optimizer function returns."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._tensorflow import old_keras
from tensorflow_ipu.feeds import IPUOutfeedQueue
from tensorflow_ipu.ops.gradient_capture import GradientCaptureContext, GradientCaptureTape

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Optimizer, Variable

_NAME = "OptimizerFunctionOutput"


class OptimizerKind(enum.Enum):
    """Whose an optimizer is: of `tf.compat.v1.train`, of Keras, or of the Keras that TensorFlow had of its own."""

    V1 = enum.auto()
    KERAS = enum.auto()
    LEGACY_KERAS = enum.auto()

    @classmethod
    def of(cls, optimizer: object) -> OptimizerKind | None:
        """The kind of an optimizer; None for what is none."""
        keras_optimizer: Any = tf.keras.optimizers.Optimizer
        kinds = {tf.compat.v1.train.Optimizer: cls.V1, keras_optimizer: cls.KERAS}
        legacy = old_keras.keras_2_class()
        if legacy is not None:
            kinds[legacy] = cls.LEGACY_KERAS
        return next((kind for base, kind in kinds.items() if isinstance(optimizer, base)), None)


class OptimizerFunctionOutput:
    """An optimizer, and the loss that it is to minimise.

        def optimizer_function(loss):
            return OptimizerFunctionOutput(tf.keras.optimizers.SGD(0.01), loss, variables=model.trainable_variables)

    Each attribute is checked when it is set.
    """

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
        """Takes the optimizer and the loss.

        Args:
          opt: A `tf.compat.v1.train` optimizer, a Keras optimizer, or one of `tensorflow.python.keras.optimizer_v2`. What it
            uses of the arguments of the optimizer function, a learning rate for one, is what the last micro-batch of a pass
            has there; in `compute_gradients`, whose gradients are those of one micro-batch, what this one has.
          loss: The loss of a micro-batch, a tensor.
          compute_gradients_args: Further positional arguments of `opt.compute_gradients`, behind the loss. For
            `tf.compat.v1.train` optimizers alone.
          compute_gradients_kwargs: Its further keyword arguments, likewise.
          apply_gradients_args: Further positional arguments of `opt.apply_gradients`, behind the pairs of gradient and
            variable.
          apply_gradients_kwargs: Its further keyword arguments.
          variables: The variables to train, with a Keras optimizer. All trainable ones that the stages use if neither
            this nor `tape` says.
          tape: A tape that watches the variables to train, in place of `variables`, with a Keras optimizer. It says which
            they are; the pipeline computes the gradients.
          gradient_capture_context: The context whose `capture_upstream_gradients` the stages call. A `tape` that is a
            `GradientCaptureTape` is one too.
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
