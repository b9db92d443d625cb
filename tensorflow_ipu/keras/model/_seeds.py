"""Has Keras draw other random numbers on each replica: other units drop out, as on the machine."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu import replicas
from tensorflow_ipu._tensorflow import patches
from tensorflow_ipu.ops import random_streams

if TYPE_CHECKING:
    import keras

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
