"""Group, layer and instance normalization as functions that create their own parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._base.tensors import known_size
from tensorflow_ipu.config import _state
from tensorflow_ipu.feeds.elements import strategy_ordinal

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorflow_ipu._base.types import ShapeLike, TensorLike

__all__ = [
    "check_groups",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "normalize",
]


def check_groups(shape: ShapeLike, groups: int, channels_axis: int) -> int:
    """Returns the axis of the channels, counted from the first.

    Raises:
      ValueError: `channels_axis` is out of bounds, or neither the second axis nor the last; the rank or the number of
        channels is unknown; or `groups` does not divide the number of channels.
    """
    shape = tf.TensorShape(shape)
    if shape.rank is None:
        raise ValueError("the rank of `inputs` must be known; use `tf.ensure_shape`")
    if not -shape.rank <= channels_axis < shape.rank:
        raise ValueError(f"`channels_axis={channels_axis}` is out of bounds: `inputs` has shape {shape}")
    axis = channels_axis % shape.rank
    if axis not in (1, shape.rank - 1):
        raise ValueError(
            f"`channels_axis={channels_axis}` must be 1 (NCHW) or -1 (NHWC), and `inputs` has shape {shape}; use"
            " `tf.transpose`"
        )
    channels = shape[axis]
    if channels is None:
        raise ValueError(f"the number of channels of `inputs` must be known, and the shape is {shape}")
    if not 1 <= groups <= channels:
        raise ValueError(f"`groups={groups}` must be from 1 to the number of channels, which is {channels}")
    if channels % groups:
        raise ValueError(f"`groups={groups}` must divide the number of channels, which is {channels}")
    return axis


def normalize(
    x: tf.Tensor,
    groups: int,
    axis: int,
    epsilon: float,
    strided: bool,
    gamma: TensorLike | None = None,
    beta: TensorLike | None = None,
) -> tf.Tensor:
    """Normalizes the channels of each group of each sample to mean 0 and variance 1, then scales and shifts.

    Args:
      x: A tensor [n, ..., channels, ...]. Half precision is computed in float32.
      groups: The number of groups.
      axis: The axis of the channels, counted from the first, 1 or more.
      epsilon: The constant added to the variance.
      strided: True if channel c is in group `c % groups`; False if groups are consecutive channels.
      gamma: The scale of each channel, of shape [channels].
      beta: The offset of each channel, of shape [channels].
    """
    channels = known_size(x, axis)
    values = tf.cast(x, tf.float32) if x.dtype in (tf.float16, tf.bfloat16) else x
    shape = [size if size is not None else tf.shape(x)[i] for i, size in enumerate(x.shape)]
    split = [channels // groups, groups] if strided else [groups, channels // groups]
    values = tf.reshape(values, [*shape[:axis], *split, *shape[axis + 1 :]])
    group_axis = axis + 1 if strided else axis
    axes = [i for i in range(1, len(shape) + 1) if i != group_axis]
    mean = tf.reduce_mean(values, axes, keepdims=True)
    options = _state.options_of_device(strategy_ordinal() or 0)
    if options is not None and options["norms.use_stable_statistics"]:
        variance = tf.reduce_mean(tf.math.squared_difference(values, mean), axes, keepdims=True)
    else:
        # Cancellation may leave a value slightly below zero.
        variance = tf.maximum(tf.reduce_mean(tf.square(values), axes, keepdims=True) - tf.square(mean), 0)
    values = tf.reshape((values - mean) * tf.math.rsqrt(variance + epsilon), shape)
    channel_shape = [channels if i == axis else 1 for i in range(len(shape))]
    if gamma is not None:
        values *= tf.reshape(tf.cast(gamma, values.dtype), channel_shape)
    if beta is not None:
        values += tf.reshape(tf.cast(beta, values.dtype), channel_shape)
    return tf.ensure_shape(tf.cast(values, x.dtype), x.shape)


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
    """Normalizes the channels of each group of each sample: https://arxiv.org/abs/1803.08494.

    `tf.compat.v1.get_variable` creates the parameters `gamma` and `beta` in a variable scope, for graphs of TensorFlow 1.
    Elsewhere each call creates new ones: use the layers of `tensorflow_ipu.keras.layers` instead.

    Args:
      inputs: A tensor [n, ...] with channels in its last or in its second dimension.
      groups: The number of groups. It divides the number of channels.
      channels_axis: The dimension of the channels: -1 or 1.
      center: Whether `beta`, of shape [channels], is added.
      scale: Whether `gamma`, of shape [channels], scales the result.
      epsilon: The constant added to the variance, against a division by zero.
      param_initializers: Initializers by the names `beta` and `gamma`; the defaults are zeros and ones.
      reuse: Whether to reuse the parameters of an earlier call in the same scope.
      variables_collections: The collections of the graph to which the parameters are added.
      training: Accepted without effect: the statistics are those of `inputs` in any case.
      trainable: Whether optimizers train the parameters.
      scope: The variable scope, or its name.
      strided_channel_grouping: True if channel c is in group `c % groups`; False if groups are consecutive channels.

    Returns:
      A tensor of the shape and dtype of `inputs`.

    Raises:
      ValueError: `channels_axis` is out of bounds, or neither the second axis nor the last; the rank or the number of
        channels is unknown; `groups` does not divide the number of channels; or `param_initializers` has other names.
    """
    return _norm("GroupNorm", groups, strided_channel_grouping, locals())


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
    """Normalizes each sample over all its dimensions. See `group_norm`, which this calls with a single group."""
    return _norm("LayerNorm", 1, False, locals())


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
    """Normalizes each channel of each sample. See `group_norm`, which this calls with one group per channel."""
    return _norm("InstanceNorm", None, False, locals())


def _norm(name: str, groups: int | None, strided: bool, arguments: Mapping[str, Any]) -> tf.Tensor:
    """Normalizes, given the arguments of a public function by name; `groups` is None for one group per channel."""
    inputs = tf.convert_to_tensor(arguments["inputs"], name="inputs")
    axis = check_groups(inputs.shape, 1 if groups is None else groups, arguments["channels_axis"])
    channels = known_size(inputs, axis)
    initializers = dict(arguments["param_initializers"] or {})
    if not initializers.keys() <= {"beta", "gamma"}:
        raise ValueError(
            f"`param_initializers` may have the names `beta` and `gamma`, and has `{sorted(initializers)}`"
        )

    def parameter(variable_name: str, default: Callable[..., tf.Tensor]) -> tf.Variable:
        return tf.compat.v1.get_variable(
            variable_name, [channels], inputs.dtype, initializers.get(variable_name, default), trainable=arguments["trainable"],
            collections=arguments["variables_collections"], use_resource=True,
        )  # fmt: skip

    with tf.compat.v1.variable_scope(arguments["scope"], name, [inputs], reuse=arguments["reuse"]):
        beta = parameter("beta", tf.compat.v1.zeros_initializer()) if arguments["center"] else None
        gamma = parameter("gamma", tf.compat.v1.ones_initializer()) if arguments["scale"] else None
        groups = channels if groups is None else groups
        return normalize(inputs, groups, axis, arguments["epsilon"], strided, gamma, beta)
