"""How gradients accumulate over mini-batches: the options, the arithmetic, and the engine of all optimizer wrappers."""

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
    """How the gradients of N micro-batches are reduced to the one of a weight update.

    `SUM` adds them. `MEAN` adds each divided by N, which keeps the sum in the range of a single one. `RUNNING_MEAN` keeps
    the mean of those so far: after gradient n (from 0), acc = acc * n / (n + 1) + gradient / (n + 1).
    """

    SUM = 0
    MEAN = 1
    RUNNING_MEAN = 2

    @classmethod
    def parse(cls, reduction_method: object) -> GradientAccumulationReductionMethod:
        """Takes a method, or its name in any case.

        Raises:
          ValueError: It is neither.
        """
        return parse_method(cls, reduction_method)


@dataclasses.dataclass(frozen=True)
class AccumulationOptions:
    """How gradients accumulate.

    Attributes:
      num_mini_batches: How many mini-batches make an update.
      offload_weight_update_variables: Where the wrapped optimizer's state is kept: on the host, on the device, or (None)
        wherever the compiler thinks best. The emulator keeps it in one memory; see `update_memory`.
      replicated_optimizer_state_sharding: Whether each replica keeps a part of that state alone. In the emulator each
        keeps all of it.
      dtype: The type of the accumulators: None for that of their variables, a type, or a function from a variable to one.
      reduction_method: How the gradients become one.
    """

    num_mini_batches: int
    offload_weight_update_variables: bool | None = None
    replicated_optimizer_state_sharding: bool = False
    dtype: DTypeOf = None
    reduction_method: GradientAccumulationReductionMethod = GradientAccumulationReductionMethod.SUM

    def accumulator_dtype(self, variable: Variable) -> tf.DType:
        """The type of the accumulator of a variable.

        Raises:
          TypeError: What the function `dtype` returned is no type of floating-point numbers.
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


def check_sharding(given: Any, faults: Faults) -> None:
    """Records a fault of options by which replicas share out a state of the optimizer that is not off the chip."""
    if given.replicated_optimizer_state_sharding and not given.offload_weight_update_variables:
        faults.add(
            ValueError,
            "To use `replicated_optimizer_state_sharding`, optimizer state must be offloaded by using"
            f" `offload_weight_update_variables`, which is {given.offload_weight_update_variables!r}: make it True",
        )


def scale_of(optimizer: object, loss: tf.Tensor) -> tf.Tensor | None:
    """Returns what a class of the user's multiplies losses by in `get_gradients`, as those of 2021 do; None for all others."""
    method = getattr(optimizer, "get_gradients", None)
    package = "" if method is None else method.__module__.partition(".")[0]
    if method is None or package in ("tensorflow", "tensorflow_ipu", "tf_keras"):
        return None
    [scale] = method(loss, [loss])
    return scale


def checked_method(name: str, value: object, faults: Faults) -> GradientAccumulationReductionMethod:
    """Parses the argument of a reduction method."""
    try:
        return GradientAccumulationReductionMethod.parse(value)
    except ValueError as exc:
        faults.add(ValueError, f"`{name}` is no such method: {exc}")
        return GradientAccumulationReductionMethod.SUM


def checked_options(
    given: AccumulationOptions,
    reduction_method: GradientAccumulationReductionMethod | str = GradientAccumulationReductionMethod.SUM,
) -> AccumulationOptions:
    """Checks the options of a constructor and its reduction method, which may be a name."""
    faults = Faults()
    num_mini_batches, dtype = given.num_mini_batches, given.dtype
    if not is_int(num_mini_batches):
        faults.add(TypeError, f"`num_mini_batches` must be an int, but is {num_mini_batches!r}")
    elif num_mini_batches < 1:
        faults.add(ValueError, f"`num_mini_batches` must be a positive number, at least 1, but is {num_mini_batches}")
    elif num_mini_batches > tf.int32.max:
        faults.add(ValueError, f"`num_mini_batches` must be at most {tf.int32.max}, but is {num_mini_batches}")
    note_bool("offload_weight_update_variables", given.offload_weight_update_variables, faults, optional=True)
    note_bool("replicated_optimizer_state_sharding", given.replicated_optimizer_state_sharding, faults)
    check_sharding(given, faults)
    if dtype is not None and not is_function(dtype) and _floating(dtype) is None:
        faults.add(
            TypeError,
            f"`dtype` must be a floating-point type, a function from a variable to one, or None, but is {dtype!r}",
        )
    reduction = checked_method("reduction_method", reduction_method, faults)
    faults.raise_any()
    return dataclasses.replace(given, reduction_method=reduction)


def _floating(dtype: Any) -> tf.DType | None:
    try:
        known = tf.as_dtype(dtype)
    except TypeError:
        return None
    return known if known.is_floating else None


def _weighted(
    method: GradientAccumulationReductionMethod,
    index: Number,
    count: Number,
    total: Callable[[], tf.Tensor],
    value: tf.Tensor,
) -> tuple[tf.Tensor | None, tf.Tensor]:
    """Returns the total if it has to be multiplied, and the gradient to add to it, each times its factor."""
    if method is GradientAccumulationReductionMethod.SUM:
        return None, value
    # float32 counts to 2^24. In float16 itself, n + 1 would be n from 2048 on; in bfloat16 from 256 on.
    wide = tf.float64 if value.dtype == tf.float64 else tf.float32
    if method is GradientAccumulationReductionMethod.MEAN:
        return None, value * tf.cast(1 / tf.cast(count, wide), value.dtype)
    before = tf.cast(index, wide)
    return (
        total() * tf.cast(before / (before + 1), value.dtype),
        value * tf.cast(1 / (before + 1), value.dtype),
    )


def accumulated(
    total: tf.Tensor, gradient: tf.Tensor, index: Number, count: Number, method: GradientAccumulationReductionMethod
) -> tf.Tensor:
    """Returns what has accumulated after gradient number `index` of `count`."""
    kept, added = _weighted(method, index, count, lambda: total, tf.cast(gradient, total.dtype))
    return (total if kept is None else kept) + added


class Accumulator:
    """Adds up the gradients of mini-batches, and after so many of them hands them on, dense."""

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
        """Adds the gradients of a mini-batch, and updates if it is the last one."""
        done = [self._add(total, gradient) for total, gradient in zip(self._totals, gradients, strict=True)]
        with tf.control_dependencies(done):
            count = self._counter.assign_add(1, read_value=True)

        def complete(_: tf.Tensor) -> tf.Tensor:
            updated = tf.nest.flatten(update([total.read_value() for total in self._totals]))
            with tf.control_dependencies([one for one in updated if isinstance(one, (tf.Operation, tf.Tensor))]):
                cleared = [total.assign(tf.zeros_like(total), read_value=False) for total in self._totals]
                cleared.append(self._counter.assign(0, read_value=False))
            with tf.control_dependencies(cleared):
                return tf.constant(False)

        # A loop of one iteration or none. Of a branch, XLA would copy all that it may update, in every mini-batch, or
        # compute the update each time and select.
        due = tf.equal(count, self._number)
        return tf.group(tf.while_loop(lambda due: due, complete, [due], parallel_iterations=1))

    def _add(self, total: tf.Variable, gradient: Gradient) -> tf.Operation:
        index = self._counter.read_value()
        if not isinstance(gradient, tf.IndexedSlices):
            new = accumulated(total.read_value(), gradient, index, self._number, self._reduction)
            return total.assign(new, read_value=False)
        rows = tf.cast(gradient.values, total.dtype)
        kept, added = _weighted(self._reduction, index, self._number, total.read_value, rows)
        with tf.control_dependencies([] if kept is None else [total.assign(kept, read_value=False)]):
            return total.scatter_add(tf.IndexedSlices(added, gradient.indices)).op
