"""Group, layer and instance normalisation as functions that make their parameters where they are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._base.tensors import known_size
from tensorflow_ipu.ops._normalization import check_groups, normalize

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorflow_ipu._base.types import TensorLike

__all__ = ["check_groups", "group_norm", "instance_norm", "layer_norm", "normalize"]


def group_norm(
    inputs: TensorLike,
    groups: int = 2,
    channels_axis: int = -1,
    center: bool = True,
    scale: bool = True,
    epsilon: float = 1.53e-5,
    param_initializers: Mapping[str, Callable[..., tf.Tensor] | TensorLike | None] | None = None,
    reuse: bool | None = None,
    variables_collections: Sequence[str] | None = None,
    training: bool = True,
    trainable: bool = True,
    scope: str | tf.compat.v1.VariableScope | None = None,
    strided_channel_grouping: bool = True,
) -> tf.Tensor:
    """Normalises the channels of each group of each sample: https://arxiv.org/abs/1803.08494.

    The parameters `gamma` and `beta` are made by `tf.compat.v1.get_variable` in a variable scope, for graphs of
    TensorFlow 1. Elsewhere each call makes new ones: use the layers of `tensorflow_ipu.keras.layers`.

    Args:
      inputs: A tensor [n, ...] with channels in its last or in its second dimension.
      groups: In how many groups the channels are. It divides their number.
      channels_axis: The dimension of the channels: -1 or 1.
      center: Whether `beta`, of shape [channels], is added.
      scale: Whether `gamma`, of shape [channels], scales the result.
      epsilon: What is added to the variance, against a division by zero.
      param_initializers: Initializers by the names `beta` and `gamma`, instead of zeros and ones.
      reuse: Whether the parameters are to be those of an earlier call in the same scope.
      variables_collections: The graph's collections that get the parameters.
      training: Whether the call is for training. Statistics are those of `inputs` either way.
      trainable: Whether optimizers are to train the parameters.
      scope: The variable scope, or its name.
      strided_channel_grouping: Whether channel c is in group `c % groups`; else groups are consecutive channels.

    Returns:
      A tensor like `inputs`.

    Raises:
      ValueError: The rank or the number of channels is not known, there is no such axis, it is neither the second nor
        the last, `groups` does not divide the number of channels, or `param_initializers` has other names.
    """
    del training  # There are no moving averages that one of both would use.
    return _norm("GroupNorm", inputs, groups, channels_axis, center, scale, epsilon, param_initializers, reuse,
                 variables_collections, trainable, scope, strided_channel_grouping)  # fmt: skip


def layer_norm(
    inputs: TensorLike,
    channels_axis: int = -1,
    center: bool = True,
    scale: bool = True,
    epsilon: float = 1.53e-5,
    param_initializers: Mapping[str, Callable[..., tf.Tensor] | TensorLike | None] | None = None,
    reuse: bool | None = None,
    variables_collections: Sequence[str] | None = None,
    training: bool = True,
    trainable: bool = True,
    scope: str | tf.compat.v1.VariableScope | None = None,
) -> tf.Tensor:
    """Normalises each sample over all its dimensions: `group_norm` with a single group, which see."""
    del training
    return _norm("LayerNorm", inputs, 1, channels_axis, center, scale, epsilon, param_initializers, reuse,
                 variables_collections, trainable, scope, False)  # fmt: skip


def instance_norm(
    inputs: TensorLike,
    channels_axis: int = -1,
    center: bool = True,
    scale: bool = True,
    epsilon: float = 1.53e-5,
    param_initializers: Mapping[str, Callable[..., tf.Tensor] | TensorLike | None] | None = None,
    reuse: bool | None = None,
    variables_collections: Sequence[str] | None = None,
    training: bool = True,
    trainable: bool = True,
    scope: str | tf.compat.v1.VariableScope | None = None,
) -> tf.Tensor:
    """Normalises each channel of each sample: `group_norm` with a group for each channel, which see."""
    del training
    return _norm("InstanceNorm", inputs, None, channels_axis, center, scale, epsilon, param_initializers, reuse,
                 variables_collections, trainable, scope, False)  # fmt: skip


def _norm(
    name: str,
    inputs: TensorLike,
    groups: int | None,
    channels_axis: int,
    center: bool,
    scale: bool,
    epsilon: float,
    param_initializers: Mapping[str, Callable[..., tf.Tensor] | TensorLike | None] | None,
    reuse: bool | None,
    collections: Sequence[str] | None,
    trainable: bool,
    scope: str | tf.compat.v1.VariableScope | None,
    strided: bool,
) -> tf.Tensor:
    """`groups` is None for as many groups as there are channels."""
    inputs = tf.convert_to_tensor(inputs, name="inputs")
    axis = check_groups(inputs.shape, 1 if groups is None else groups, channels_axis)
    channels = known_size(inputs, axis)
    given = dict(param_initializers or {})
    if not given.keys() <= {"beta", "gamma"}:
        raise ValueError(f"`param_initializers` may have the names `beta` and `gamma`, and has `{sorted(given)}`")

    def parameter(which: str, default: Callable[..., tf.Tensor]) -> tf.Variable:
        return tf.compat.v1.get_variable(
            which,
            [channels],
            inputs.dtype,
            given.get(which, default),
            trainable=trainable,
            collections=collections,
            use_resource=True,
        )

    with tf.compat.v1.variable_scope(scope, name, [inputs], reuse=reuse):
        beta = parameter("beta", tf.compat.v1.zeros_initializer()) if center else None
        gamma = parameter("gamma", tf.compat.v1.ones_initializer()) if scale else None
        return normalize(inputs, channels if groups is None else groups, axis, epsilon, strided, gamma, beta)
