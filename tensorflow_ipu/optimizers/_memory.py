"""The memory of a machine that weights and their updates would take, in its IPUs and beside them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._base.checks import is_int
from tensorflow_ipu.optimizers._accumulator import AccumulationOptions

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import DTypeLike, Optimizer, Variable


@dataclasses.dataclass(frozen=True)
class UpdateMemory:
    """What one replica keeps between two micro-batches, in bytes. A model of the machine: the emulator has one memory.

    Attributes:
      weights: The variables that are trained.
      accumulators: Where gradients of micro-batches add up; 0 without accumulation.
      state_on_chip: The optimizer's state (momentum, moments, counts) in the memory of the IPU.
      state_off_chip: The same in remote memory.
    """

    weights: int
    accumulators: int
    state_on_chip: int
    state_off_chip: int

    @property
    def on_chip(self) -> int:
        """All that is in the memory of the replica's IPUs."""
        return self.weights + self.accumulators + self.state_on_chip


def update_memory(
    optimizer: Optimizer, variables: Iterable[Variable], replicas: int = 1, minimum_remote_tensor_size: int = 128
) -> UpdateMemory:
    """Tells what memory a replica needs for its weights and their updates, as the options of the optimizer place it.

    With `offload_weight_update_variables=True` the state is off the chip, but for tensors that are too small; with
    `replicated_optimizer_state_sharding` too, a replica keeps its part alone of that.

    Args:
      optimizer: An optimizer of `tf.compat.v1.train` or Keras, or a wrapper of it, accumulating or not. What state it has
        by now counts: it makes it at its first update, or in Keras's `build`.
      variables: The variables that it trains.
      replicas: Among how many replicas a state is divided, if it is.
      minimum_remote_tensor_size: How many bytes a tensor must have to be kept off the chip: the attribute of
        `IPUConfig.optimizations` of this name.

    Raises:
      TypeError: `optimizer` has no variables.
      ValueError: `replicas` is below 1.
    """
    if not is_int(replicas) or replicas < 1:
        raise ValueError(f"`replicas` must be a number of replicas, at least 1, but is {replicas!r}")
    weights = list(variables)
    options = getattr(optimizer, "options", None)
    accumulators, offloaded, parts = 0, False, 1
    if isinstance(options, AccumulationOptions):
        accumulators = sum(_bytes(weight, options.accumulator_dtype(weight)) for weight in weights)
        offloaded = options.offload_weight_update_variables is True
        parts = replicas if options.replicated_optimizer_state_sharding else 1
    on_chip = off_chip = 0
    for tensor in state_of(optimizer):
        size = _bytes(tensor, tensor.dtype)
        if offloaded and size >= minimum_remote_tensor_size:
            off_chip += _bytes(tensor, tensor.dtype, parts)
        else:
            on_chip += size
    return UpdateMemory(sum(_bytes(weight, weight.dtype) for weight in weights), accumulators, on_chip, off_chip)


def state_of(optimizer: Any) -> list[Variable]:
    """The variables of the optimizer that updates the weights, inside of all its wrappers."""
    while hasattr(optimizer, "inner_optimizer"):  # Those of Keras's wrappers have the wrappers' own as well.
        optimizer = optimizer.inner_optimizer
    state: Any = getattr(optimizer, "variables", None)
    if state is None:
        raise TypeError(f"`optimizer` must be an optimizer of `tf.compat.v1.train` or Keras, but is {optimizer!r}")
    return list(state) if isinstance(state, list) else list(state())


def accumulators_of(optimizer: Any) -> list[Variable]:
    """The variables in which wrappers of an optimizer accumulate gradients: those that they have made by now."""
    found: list[Variable] = []
    while optimizer is not None:
        found += getattr(optimizer, "accumulators", ())
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return found


def bytes_of(variable: Variable) -> int:
    return _bytes(variable, variable.dtype)


def _bytes(tensor: Variable, dtype: DTypeLike, parts: int = 1) -> int:
    """Returns the bytes of one of so many equal parts of a tensor, the last of which is filled up."""
    return math.ceil(math.prod(tensor.shape) / parts) * tf.as_dtype(dtype).size  # pyright: ignore[reportArgumentType, reportCallIssue]  # Known.
