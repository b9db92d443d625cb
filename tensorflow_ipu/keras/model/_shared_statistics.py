"""Has Keras's batch normalization share its statistics among replicas, where an IPU's would."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from tensorflow_ipu._tensorflow import patches
from tensorflow_ipu.ops import distributed_batch_norm

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
