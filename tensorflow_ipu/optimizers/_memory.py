"""The memory that weights and their updates would need on a machine, on its IPUs and in remote memory."""

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
    """The memory that one replica needs between two micro-batches, in bytes.

    This is a prediction for a machine: the emulator has one memory.

    Attributes:
      weights: The trained variables.
      accumulators: The accumulators of gradients; 0 without accumulation.
      state_on_chip: The variables of the optimizer (momentum, moments, counts) in the memory of the IPUs.
      state_off_chip: The variables of the optimizer in remote memory.
    """

    weights: int
    accumulators: int
    state_on_chip: int
    state_off_chip: int

    @property
    def on_chip(self) -> int:
        """The bytes in the memory of the replica's IPUs."""
        return self.weights + self.accumulators + self.state_on_chip


def update_memory(
    optimizer: Optimizer, variables: Iterable[Variable], replicas: int = 1, minimum_remote_tensor_size: int = 128
) -> UpdateMemory:
    """Returns the memory that a replica needs for its weights and their updates.

    With `offload_weight_update_variables=True`, the variables of the optimizer are off the chip, except tensors that
    are too small. If `replicated_optimizer_state_sharding` is also True, each replica stores one part of these.

    Args:
      optimizer: An optimizer of `tf.compat.v1.train` or Keras, or a wrapper of one. Only variables that the optimizer
        has already created count. It creates them at its first update, or in Keras's `build`.
      variables: The variables that the optimizer trains.
      replicas: The number of replicas among which sharded variables are divided.
      minimum_remote_tensor_size: The smallest size in bytes of a tensor that is stored off the chip: the attribute of
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
    """Returns the variables of the innermost optimizer, which updates the weights."""
    while hasattr(optimizer, "inner_optimizer"):  # The list of a Keras wrapper includes its own variables.
        optimizer = optimizer.inner_optimizer
    state: Any = getattr(optimizer, "variables", None)
    if state is None:
        raise TypeError(f"`optimizer` must be an optimizer of `tf.compat.v1.train` or Keras, but is {optimizer!r}")
    return list(state) if isinstance(state, list) else list(state())


def accumulators_of(optimizer: Any) -> list[Variable]:
    """Returns the accumulators of all wrappers of an optimizer that exist already."""
    accumulators: list[Variable] = []
    while optimizer is not None:
        accumulators += getattr(optimizer, "accumulators", ())
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return accumulators


def bytes_of(variable: Variable) -> int:
    return _bytes(variable, variable.dtype)


def _bytes(tensor: Variable, dtype: DTypeLike, parts: int = 1) -> int:
    """Returns the size in bytes of one of `parts` equal parts of a tensor, with padding in the last part."""
    return math.ceil(math.prod(tensor.shape) / parts) * tf.as_dtype(dtype).size  # pyright: ignore[reportArgumentType, reportCallIssue]  # Known.
