"""Has Keras's batch normalization share its statistics among replicas, where an IPU's would."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu import replicas
from tensorflow_ipu._tensorflow import patches
from tensorflow_ipu.ops import distributed_batch_norm, random_streams

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

_IMAGES = 4  # The rank of what the IPU's layer normalizes by the fused operation.

_Moments = tuple["tf.Tensor", "tf.Tensor"]


def share_statistics() -> None:
    """Has layers that are fused on an IPU share mean and variance in training, from the next trace on.

    Those are `keras.layers.BatchNormalization` of four dimensions, without a mask and `renorm`. One that is
    `synchronized` shares them with all replicas already.
    """
    patches.KERAS_MOMENTS.by(_shared)


def _shared(plain: Callable[..., _Moments]) -> Callable[..., _Moments]:
    @functools.wraps(plain)
    def moments(self: keras.layers.BatchNormalization, inputs: tf.Tensor, mask: tf.Tensor | None) -> _Moments:
        rank = inputs.shape.rank
        renorm = getattr(self, "renorm", False)  # Keras 3.12, the last for Python 3.10, has none.
        fused = rank == _IMAGES and mask is None and not self.synchronized and not renorm
        size = distributed_batch_norm.group_size() if fused else 1
        if size == 1:
            return plain(self, inputs, mask)
        return distributed_batch_norm.shared_moments(inputs, [i for i in range(rank) if i != self.axis % rank], size)

    return moments


# 2**32 divided by the golden ratio: its multiples are far apart.
_FAR = 0x9E3779B9


def seed_by_replica() -> None:
    """Has each seed that Keras draws in a program be the replica's own, from the next trace on.

    A seed generator's state is a variable, equal on all replicas. Replica 0, and with it a program of one replica, draws
    what plain Keras draws.
    """
    patches.KERAS_SEEDS.by(_by_replica)


def _by_replica(plain: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    @functools.wraps(plain)
    def by_replica(self: keras.random.SeedGenerator, ordered: bool = True) -> tf.Tensor:
        value = plain(self, ordered)
        if not replicas.is_tracing():
            return value
        own = tf.cast(random_streams.stream() * _FAR, tf.uint32)
        return tf.bitwise.bitwise_xor(value, tf.cast(tf.stack([own, tf.zeros_like(own)]), value.dtype))

    return by_replica
