"""A dropout layer that has the same mask in each step if it has a seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tensorflow_ipu._base.checks import check_bool
from tensorflow_ipu.keras._keras import internals, keras
from tensorflow_ipu.ops import rand_ops

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Config, Shape

__all__ = ["Dropout"]


@keras.saving.register_keras_serializable(package="tensorflow_ipu")
class Dropout(keras.layers.Layer):
    """Sets random inputs to zero in training and divides the remaining inputs by `1 - rate`. Inference changes nothing.

    With a `seed`, all steps and replicas have the same mask. Without it, each step and replica has a different mask,
    which depends on `keras.utils.set_random_seed`. In contrast, the seed of `keras.layers.Dropout` is a single integer,
    and its masks differ in each step.
    """

    def __init__(
        self,
        rate: float,
        noise_shape: Sequence[int | None] | None = None,
        seed: Sequence[int] | np.ndarray | tf.Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        """Creates the layer; `noise_shape` and `ref`, which has no effect, are as for `tensorflow_ipu.ops.rand_ops.dropout`.

        `rate` is the fraction of inputs that become zero, from 0 to below 1. `seed` is a pair of 32-bit integers: a
        list, an array or a constant tensor. None: a different mask in each step.

        Raises:
          ValueError: `rate` is not from 0 to below 1, or `seed` is not a pair of 32-bit integers.
          TypeError: `ref` is not a bool.
        """
        check_bool("ref", kwargs.pop("ref", True))
        super().__init__(**kwargs)
        if not 0 <= rate < 1:
            raise ValueError(f"`rate` must be from 0 to below 1, but is `{rate!r}`")
        self.rate = rate
        self.noise_shape = None if noise_shape is None else tuple(noise_shape)
        self.seed = None if seed is None else _pair(seed)
        self.seed_generator = internals.seed_generator() if self.seed is None else None
        self.supports_masking = True

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Returns `inputs` with random zeros if `training` is True, or else unchanged."""
        if not training or self.rate == 0:
            return inputs
        seed = self.seed if self.seed_generator is None else tf.cast(self.seed_generator.next(), tf.int32)
        return rand_ops.dropout(inputs, self.rate, self.noise_shape, seed)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> Config:
        return {**super().get_config(), "rate": self.rate, "noise_shape": self.noise_shape, "seed": self.seed}


def _pair(seed: Sequence[int] | np.ndarray | tf.Tensor) -> list[int]:
    values = np.asarray(seed)
    if values.shape != (2,) or not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"`seed` must be two integers, but is `{seed!r}`")
    pair = [int(value) for value in values]
    if any(not -(2**31) <= value < 2**31 for value in pair):
        raise ValueError(f"`seed` must be two integers of 32 bits, but is `{pair}`")
    return pair
