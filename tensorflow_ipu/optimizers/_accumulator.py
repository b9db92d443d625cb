"""The accumulation of gradients over mini-batches: options, arithmetic, and accumulators of optimizer wrappers."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._base.checks import Faults, is_int, note_bool, parse_method
from tensorflow_ipu._base.tensors import is_function

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import DTypeOf, Gradient, Nested, Number, Variable


class GradientAccumulationReductionMethod(enum.Enum):
    """The reduction of the gradients of N micro-batches to the gradient of one weight update.

    * `SUM`: The sum of the gradients.
    * `MEAN`: The sum of the gradients, each divided by N first. So the sum stays in the range of a single gradient.
    * `RUNNING_MEAN`: The mean of the gradients so far: after gradient n (from 0),
      acc = acc * n / (n + 1) + gradient / (n + 1).
    """

    SUM = 0
    MEAN = 1
    RUNNING_MEAN = 2

    @classmethod
    def parse(cls, reduction_method: object) -> GradientAccumulationReductionMethod:
        """Returns the method with this name, in upper or lower case; a method is returned unchanged.

        Raises:
          ValueError: `reduction_method` is neither a method nor its name.
        """
        return parse_method(cls, reduction_method)


@dataclasses.dataclass(frozen=True)
class AccumulationOptions:
    """The options of gradient accumulation.

    Attributes:
      num_mini_batches: The number of mini-batches of an update.
      offload_weight_update_variables: The memory for the variables of the wrapped optimizer: remote memory (True), the
        device (False), or the choice of the compiler (None). The emulator has one memory; see `update_memory`.
      replicated_optimizer_state_sharding: True if each replica stores only a part of these variables. In the emulator,
        each replica stores all of them.
      dtype: The type of the accumulators: None for that of their variables, a type, or a function from a variable to a
        type.
      reduction_method: The reduction of the gradients to one.
    """

    num_mini_batches: int
    offload_weight_update_variables: bool | None = None
    replicated_optimizer_state_sharding: bool = False
    dtype: DTypeOf = None
    reduction_method: GradientAccumulationReductionMethod = GradientAccumulationReductionMethod.SUM

    def accumulator_dtype(self, variable: Variable) -> tf.DType:
        """Returns the type of the accumulator of a variable.

        Raises:
          TypeError: The function `dtype` did not return a floating-point type.
        """
        if self.dtype is None:
            return tf.as_dtype(variable.dtype)
        if not is_function(self.dtype):
            return tf.as_dtype(self.dtype)
        returned = self.dtype(variable)
        kind = _floating(returned)
        if kind is None:
            raise TypeError(
                f"`dtype` must return a floating-point type, but returned {returned!r} for `{variable.name}`"
            )
        return kind


def check_sharding(options: Any, faults: Faults) -> None:
    """Records an error if options divide the optimizer's variables among replicas without storing them off the chip."""
    if options.replicated_optimizer_state_sharding and not options.offload_weight_update_variables:
        faults.add(
            ValueError,
            "To use `replicated_optimizer_state_sharding`, optimizer state must be offloaded by using"
            f" `offload_weight_update_variables`, which is {options.offload_weight_update_variables!r}: make it True",
        )


def scale_of(optimizer: object, loss: tf.Tensor) -> tf.Tensor | None:
    """Returns the factor that `get_gradients` of a user's optimizer multiplies losses by; None for other optimizers.

    Keras optimizers of 2021 called this method, so users override it to scale losses.
    """
    method = getattr(optimizer, "get_gradients", None)
    package = "" if method is None else method.__module__.partition(".")[0]
    if method is None or package in ("tensorflow", "tensorflow_ipu", "tf_keras"):
        return None
    [scale] = method(loss, [loss])
    return scale


def checked_method(name: str, value: object, faults: Faults) -> GradientAccumulationReductionMethod:
    """Returns the reduction method of an argument; records an error and returns `SUM` if it is not valid."""
    try:
        return GradientAccumulationReductionMethod.parse(value)
    except ValueError as exc:
        faults.add(ValueError, f"`{name}` is not a reduction method: {exc}")
        return GradientAccumulationReductionMethod.SUM


def checked_options(
    options: AccumulationOptions,
    reduction_method: GradientAccumulationReductionMethod | str = GradientAccumulationReductionMethod.SUM,
) -> AccumulationOptions:
    """Checks options and a reduction method or its name; returns the options with this method."""
    faults = Faults()
    num_mini_batches, dtype = options.num_mini_batches, options.dtype
    if not is_int(num_mini_batches):
        faults.add(TypeError, f"`num_mini_batches` must be an int, but is {num_mini_batches!r}")
    elif num_mini_batches < 1:
        faults.add(ValueError, f"`num_mini_batches` must be a positive number, at least 1, but is {num_mini_batches}")
    elif num_mini_batches > tf.int32.max:
        faults.add(ValueError, f"`num_mini_batches` must be at most {tf.int32.max}, but is {num_mini_batches}")
    note_bool("offload_weight_update_variables", options.offload_weight_update_variables, faults, optional=True)
    note_bool("replicated_optimizer_state_sharding", options.replicated_optimizer_state_sharding, faults)
    check_sharding(options, faults)
    if dtype is not None and not is_function(dtype) and _floating(dtype) is None:
        faults.add(
            TypeError,
            f"`dtype` must be a floating-point type, a function from a variable to one, or None, but is {dtype!r}",
        )
    reduction = checked_method("reduction_method", reduction_method, faults)
    faults.raise_any()
    return dataclasses.replace(options, reduction_method=reduction)


def _floating(dtype: Any) -> tf.DType | None:
    try:
        result = tf.as_dtype(dtype)
    except TypeError:
        return None
    return result if result.is_floating else None


def _weighted(
    method: GradientAccumulationReductionMethod,
    index: Number,
    count: Number,
    total: Callable[[], tf.Tensor],
    value: tf.Tensor,
) -> tuple[tf.Tensor | None, tf.Tensor]:
    """Returns the total times its factor (None if the factor is 1) and the gradient times its factor."""
    if method is GradientAccumulationReductionMethod.SUM:
        return None, value
    # Counts are exact up to 2^24 in float32. In float16, n + 1 would be n from 2048 on; in bfloat16, from 256 on.
    wide = tf.float64 if value.dtype == tf.float64 else tf.float32
    if method is GradientAccumulationReductionMethod.MEAN:
        return None, value * tf.cast(1 / tf.cast(count, wide), value.dtype)
    position = tf.cast(index, wide)
    return (
        total() * tf.cast(position / (position + 1), value.dtype),
        value * tf.cast(1 / (position + 1), value.dtype),
    )


def accumulated(
    total: tf.Tensor, gradient: tf.Tensor, index: Number, count: Number, method: GradientAccumulationReductionMethod
) -> tf.Tensor:
    """Returns the accumulator after gradient number `index` of `count`, given its value before."""
    scaled, added = _weighted(method, index, count, lambda: total, tf.cast(gradient, total.dtype))
    return (total if scaled is None else scaled) + added


class Accumulator:
    """The variables that accumulate the gradients of `number` mini-batches, and the counter of mini-batches."""

    def __init__(
        self,
        counter: tf.Variable,
        totals: Sequence[tf.Variable],
        number: int,
        reduction: GradientAccumulationReductionMethod,
    ) -> None:
        self._counter = counter
        self._totals = list(totals)
        self._number = number
        self._reduction = reduction

    @property
    def totals(self) -> list[tf.Variable]:
        return self._totals

    def step(self, gradients: Sequence[Gradient], update: Callable[[list[tf.Tensor]], Nested]) -> tf.Operation:
        """Adds the gradients of a mini-batch. At the last mini-batch, calls `update` with the dense accumulators."""
        done = [self._add(total, gradient) for total, gradient in zip(self._totals, gradients, strict=True)]
        with tf.control_dependencies(done):
            count = self._counter.assign_add(1, read_value=True)

        def complete(_: tf.Tensor) -> tf.Tensor:
            updates = tf.nest.flatten(update([total.read_value() for total in self._totals]))
            with tf.control_dependencies([done for done in updates if isinstance(done, (tf.Operation, tf.Tensor))]):
                cleared = [total.assign(tf.zeros_like(total), read_value=False) for total in self._totals]
                cleared.append(self._counter.assign(0, read_value=False))
            with tf.control_dependencies(cleared):
                return tf.constant(False)

        # A loop of one iteration or none, in place of a branch. For a branch, XLA would copy all variables that it may
        # update in every mini-batch, or compute the update each time and select.
        due = tf.equal(count, self._number)
        return tf.group(tf.while_loop(lambda due: due, complete, [due], parallel_iterations=1))

    def _add(self, total: tf.Variable, gradient: Gradient) -> tf.Operation:
        index = self._counter.read_value()
        if not isinstance(gradient, tf.IndexedSlices):
            new = accumulated(total.read_value(), gradient, index, self._number, self._reduction)
            return total.assign(new, read_value=False)
        rows = tf.cast(gradient.values, total.dtype)
        scaled, added = _weighted(self._reduction, index, self._number, total.read_value, rows)
        with tf.control_dependencies([] if scaled is None else [total.assign(scaled, read_value=False)]):
            return total.scatter_add(tf.IndexedSlices(added, gradient.indices)).op
