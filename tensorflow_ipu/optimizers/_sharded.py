"""The optimizer of sharded models."""

from __future__ import annotations

import tensorflow as tf

from tensorflow_ipu.optimizers._ipu_optimizer import IpuOptimizer


class ShardedOptimizer(IpuOptimizer):
    """Trains a model whose layers are sharded over IPUs, as the wrapped optimizer does.

    On IPUs it places the operations of the backward pass on the shards of the forward one. The emulator computes all
    shards of a program in one place, so that the numbers are those of the wrapped optimizer.
    """

    def __init__(self, optimizer: tf.compat.v1.train.Optimizer) -> None:
        """Wraps `optimizer`.

        Args:
          optimizer: A `tf.compat.v1.train.Optimizer`.

        Raises:
          ValueError: It is no such optimizer.
        """
        super().__init__(optimizer, "ShardedOptimizer")
