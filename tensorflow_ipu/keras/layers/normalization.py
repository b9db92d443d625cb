"""Group, instance and layer normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._base.checks import is_int
from tensorflow_ipu._base.tensors import known_size
from tensorflow_ipu.keras._keras import keras
from tensorflow_ipu.keras.layers._config import arguments_of
from tensorflow_ipu.ops import normalization_ops

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Config, Constraint, Initializer, Regularizer, Shape, TensorLike

__all__ = ["GroupNormalization", "InstanceNormalization", "LayerNormalization"]


@keras.saving.register_keras_serializable(package="tensorflow_ipu")
class GroupNormalization(keras.layers.Layer):
    """Normalises the channels of each group of each sample: https://arxiv.org/abs/1803.08494.

    Channel c is in group `c % groups`. If `strided_channel_grouping` is False, each group has consecutive channels. The
    layer computes the same in training and inference.
    """

    def __init__(
        self,
        groups: int = 2,
        channels_axis: int = -1,
        center: bool = True,
        scale: bool = True,
        epsilon: float = 1e-3,
        beta_initializer: Initializer = None,
        gamma_initializer: Initializer = None,
        strided_channel_grouping: bool = True,
        trainable: bool = True,
        **kwargs: Any,
    ) -> None:
        """Creates the layer; see `tensorflow_ipu.ops.normalization_ops.group_norm` for the arguments.

        An initializer of None means zeros for `beta` and ones for `gamma`.

        Raises:
          ValueError: `groups` is below 1.
        """
        super().__init__(trainable=trainable, **kwargs)
        if groups < 1:
            raise ValueError(f"`groups` must be 1 or more, but is `{groups}`")
        self.groups = groups
        self.channels_axis = channels_axis
        self.center = center
        self.scale = scale
        self.epsilon = epsilon
        self.beta_initializer = keras.initializers.get("zeros" if beta_initializer is None else beta_initializer)
        self.gamma_initializer = keras.initializers.get("ones" if gamma_initializer is None else gamma_initializer)
        self.strided_channel_grouping = strided_channel_grouping
        self.supports_masking = True
        self.gamma: keras.Variable | None = None
        self.beta: keras.Variable | None = None

    def build(self, input_shape: Shape) -> None:
        """Creates `gamma` and `beta` for inputs of this shape.

        Raises:
          ValueError: `channels_axis` is out of range, the number of channels is unknown, or `groups` does not divide
            it.
        """
        axis = self._check(input_shape)
        self._add_parameters((input_shape[axis],))
        self.built = True

    def call(self, inputs: TensorLike, training: bool | None = None) -> tf.Tensor:
        """Returns the normalised tensor for a tensor [batch, ...], with its shape and type."""
        del training
        inputs = tf.convert_to_tensor(inputs)
        gamma, beta = (None if weight is None else tf.convert_to_tensor(weight) for weight in (self.gamma, self.beta))
        groups, axis = self._groups_of(inputs.shape), self._check(inputs.shape)
        return normalization_ops.normalize(
            inputs, groups, axis, self.epsilon, self.strided_channel_grouping, gamma, beta
        )

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, GroupNormalization)}

    def _groups_of(self, shape: tf.TensorShape | Shape) -> int:
        del shape
        return self.groups

    def _check(self, shape: tf.TensorShape | Shape) -> int:
        return normalization_ops.check_groups(shape, self._groups_of(shape), self.channels_axis)

    def _add_parameters(self, shape: Shape, *kinds: str) -> None:
        """Creates `gamma` and `beta` with the layer's initializers and with its options of `kinds`, such as "regularizer"."""
        for name, is_enabled in (("gamma", self.scale), ("beta", self.center)):
            if is_enabled:
                options: dict[str, Any] = {kind: getattr(self, f"{name}_{kind}") for kind in ("initializer", *kinds)}
                setattr(self, name, self.add_weight(name=name, shape=shape, **options))


@keras.saving.register_keras_serializable(package="tensorflow_ipu")
class InstanceNormalization(GroupNormalization):
    """Normalises each channel of each sample: https://arxiv.org/abs/1607.08022."""

    def __init__(
        self,
        channels_axis: int = -1,
        center: bool = True,
        scale: bool = True,
        epsilon: float = 1e-3,
        beta_initializer: Initializer = None,
        gamma_initializer: Initializer = None,
        trainable: bool = True,
        **kwargs: Any,
    ) -> None:
        """Creates the layer. It is a `GroupNormalization` with one group for each channel, and has its arguments."""
        super().__init__(
            1, channels_axis, center, scale, epsilon, beta_initializer, gamma_initializer, trainable=trainable, **kwargs
        )

    def call(self, inputs: TensorLike, training: bool | None = None) -> tf.Tensor:
        """Returns the normalised tensor for a tensor [batch, ...], with its shape and type."""
        return super().call(inputs, training)

    def get_config(self) -> Config:
        return _without(super().get_config(), "groups", "strided_channel_grouping")

    def _groups_of(self, shape: tf.TensorShape | Shape) -> int:
        rank = len(shape)
        in_range = -rank <= self.channels_axis < rank
        return (shape[self.channels_axis] or 1) if in_range else 1  # `_check` raises the error.


@keras.saving.register_keras_serializable(package="tensorflow_ipu")
class LayerNormalization(GroupNormalization):
    """Normalises each sample over some dimensions like `keras.layers.LayerNormalization`: https://arxiv.org/abs/1607.06450."""

    def __init__(
        self,
        axis: int | Sequence[int] = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Initializer = "zeros",
        gamma_initializer: Initializer = "ones",
        beta_regularizer: Regularizer = None,
        gamma_regularizer: Regularizer = None,
        beta_constraint: Constraint = None,
        gamma_constraint: Constraint = None,
        trainable: bool = True,
        **kwargs: Any,
    ) -> None:
        """Creates the layer. Arguments that are not named here are as for `GroupNormalization`.

        `axis` is the dimension, or the list of dimensions, to normalise over. `gamma` and `beta` have the sizes of
        these dimensions. The regularizers and constraints are those of `beta` and `gamma`.

        Raises:
          ValueError: `axis` is neither an int nor a list or tuple of ints, or names a dimension twice.
        """
        super().__init__(
            1, -1, center, scale, epsilon, beta_initializer, gamma_initializer, trainable=trainable, **kwargs
        )
        axes: list[Any] = list(axis) if isinstance(axis, (list, tuple)) else [axis]
        if not axes or not all(is_int(dimension) for dimension in axes):
            raise ValueError(f"`axis` must be an int, or a list or tuple of ints, but is `{axis!r}`")
        self.axis: int | list[int] = axis if isinstance(axis, int) else axes
        self.beta_regularizer = keras.regularizers.get(beta_regularizer)
        self.gamma_regularizer = keras.regularizers.get(gamma_regularizer)
        self.beta_constraint = keras.constraints.get(beta_constraint)
        self.gamma_constraint = keras.constraints.get(gamma_constraint)

    def build(self, input_shape: Shape) -> None:
        """Creates `gamma` and `beta` for inputs of this shape.

        Raises:
          ValueError: A dimension of `axis` does not exist, or its size is unknown.
        """
        self._add_parameters(tuple(input_shape[axis] for axis in self._axes(input_shape)), "regularizer", "constraint")
        self.built = True

    def call(self, inputs: TensorLike, training: bool | None = None) -> tf.Tensor:
        """Returns the normalised tensor for a tensor [batch, ...], with its shape and type.

        Raises:
          ValueError: A dimension of `axis` does not exist, or its size is unknown.
        """
        del training
        inputs = tf.convert_to_tensor(inputs)
        axes = self._axes(inputs.shape)
        order = [axis for axis in range(len(inputs.shape)) if axis not in axes] + axes
        transposed = tf.transpose(inputs, order)
        rows = tf.reshape(transposed, [-1, math.prod(known_size(inputs, axis) for axis in axes)])
        gamma, beta = (None if weight is None else tf.reshape(weight, [-1]) for weight in (self.gamma, self.beta))
        rows = normalization_ops.normalize(rows, 1, 1, self.epsilon, False, gamma, beta)
        inverse = [order.index(axis) for axis in range(len(order))]
        return tf.ensure_shape(tf.transpose(tf.reshape(rows, tf.shape(transposed)), inverse), inputs.shape)

    def get_config(self) -> Config:
        return {
            **_without(super().get_config(), "groups", "channels_axis", "strided_channel_grouping"),
            **arguments_of(self, LayerNormalization),
        }

    def _axes(self, shape: tf.TensorShape | Shape) -> list[int]:
        """Returns the dimensions of `axis` as indices from 0."""
        rank = len(shape)
        signed_axes: list[int] = [self.axis] if isinstance(self.axis, int) else list(self.axis)
        if not all(-rank <= axis < rank for axis in signed_axes):
            raise ValueError(f"`axis={self.axis}` is out of bounds: `inputs` has shape {tuple(shape)}")
        axes = [axis % rank for axis in signed_axes]
        if len(set(axes)) != len(axes):
            raise ValueError(f"`axis={self.axis}` names a dimension of `inputs` twice; the shape is {tuple(shape)}")
        if any(shape[axis] is None for axis in axes):
            raise ValueError(f"the sizes of `axis={self.axis}` must be known, but `inputs` has shape {tuple(shape)}")
        return axes


def _without(config: Config, *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}
