"""The arguments that all optimizers with gradient accumulation share."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._base.checks import Faults, is_int, note_bool
from tensorflow_ipu._base.tensors import is_function
from tensorflow_ipu.optimizers._accumulator import GradientAccumulationReductionMethod

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import DTypeOf, Variable


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


def checked(
    num_mini_batches: int,
    offload_weight_update_variables: bool | None = None,
    replicated_optimizer_state_sharding: bool = False,
    dtype: DTypeOf = None,
    reduction_method: GradientAccumulationReductionMethod | str = GradientAccumulationReductionMethod.SUM,
) -> AccumulationOptions:
    """The options of an optimizer, from the arguments of its constructor."""
    faults = Faults()
    if not is_int(num_mini_batches):
        faults.add(TypeError, f"`num_mini_batches` must be an int, but is {num_mini_batches!r}")
    elif num_mini_batches < 1:
        faults.add(ValueError, f"`num_mini_batches` must be a positive number, at least 1, but is {num_mini_batches}")
    elif num_mini_batches > tf.int32.max:
        faults.add(ValueError, f"`num_mini_batches` must be at most {tf.int32.max}, but is {num_mini_batches}")
    offloaded = offload_weight_update_variables
    note_bool("offload_weight_update_variables", offloaded, faults, optional=True)
    sharded = replicated_optimizer_state_sharding
    if note_bool("replicated_optimizer_state_sharding", sharded, faults) and sharded and not offloaded:
        faults.add(
            ValueError,
            "`replicated_optimizer_state_sharding` shards the optimizer state that is offloaded, and"
            f" `offload_weight_update_variables` is {offloaded!r}: make it True",
        )
    if dtype is not None and not is_function(dtype) and _floating(dtype) is None:
        faults.add(
            TypeError,
            f"`dtype` must be a floating-point type, a function from a variable to one, or None, but is {dtype!r}",
        )
    reduction = GradientAccumulationReductionMethod.SUM
    try:
        reduction = GradientAccumulationReductionMethod.parse(reduction_method)
    except ValueError as exc:
        faults.add(ValueError, str(exc))
    faults.raise_any()
    return AccumulationOptions(num_mini_batches, offloaded, sharded, dtype, reduction)


def _floating(dtype: Any) -> tf.DType | None:
    try:
        known = tf.as_dtype(dtype)
    except TypeError:
        return None
    return known if known.is_floating else None
