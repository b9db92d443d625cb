"""Batch normalization over groups of replicas: the option `distributed_batch_norm_replica_group_size`.

If the option is above 1, programs replace TensorFlow's fused batch normalization in training by operations that gather the
statistics of all replicas of a group. This takes one collective in the forward pass, and one in the backward pass. In
programs, and in scripts with `compat`, `scale`, `offset`, `mean` and `variance` may be float16.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._base.tensors import known_size
from tensorflow_ipu.config import _state
from tensorflow_ipu.feeds.elements import strategy_ordinal
from tensorflow_ipu.ops import _collectives
from tensorflow_ipu.programs import ReplicaGroups

__all__ = ["group_size", "shared_moments"]

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorflow_ipu._base.types import TensorLike

_OPTION = "norms.experimental.distributed_batch_norm_replica_group_size"


_FIELDS = ("y", "batch_mean", "batch_variance", "reserve_space_1", "reserve_space_2", "reserve_space_3")
_Results = collections.namedtuple("_Results", _FIELDS[:5])  # noqa: PYI024  (Like TensorFlow's.)
_ResultsV3 = collections.namedtuple("_ResultsV3", _FIELDS)  # noqa: PYI024


def group_size() -> int:
    """Returns the number of replicas that share statistics in the program being traced; 1 outside of programs."""
    if not programs.is_tracing():
        return 1
    options = _state.options_of_device(strategy_ordinal() or 0)
    size = 1 if options is None else options[_OPTION]
    ipus = programs.ipus_traced_for()
    if ipus is not None and ipus % size:
        raise ValueError(
            f"`{_OPTION}={size}` must divide the number of replicas, but the device has {ipus}"
            f" replica{'s' if ipus > 1 else ''}: set it to a divisor, or to 1 for separate statistics of each replica"
        )
    return size


def shared_moments(x: tf.Tensor, axes: Sequence[int], size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes the mean and variance over `axes` of the tensors of all replicas of a group.

    The gradients are summed over the group, which is right for a loss that is the sum of the replicas' losses. The
    variance is the mean of the replicas' variances, plus the variance of their means: `mean(x ** 2) - mean(x) ** 2`
    would lose precision if the means are large.
    """
    moments = tf.nn.moments(x, list(axes))
    means, variances = _collectives.all_gather("batch_norm", moments, ReplicaGroups(size))
    shape = moments[0].shape
    mean = tf.reduce_mean(means, 0)
    variance = tf.reduce_mean(variances + tf.math.squared_difference(means, mean), 0)
    return tf.ensure_shape(mean, shape), tf.ensure_shape(variance, shape)


def _normalize(
    x: TensorLike,
    scale: TensorLike,
    offset: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    epsilon: float,
    exponential_avg_factor: float,
    data_format: str | bytes,
    size: int,
) -> _ResultsV3:
    """Computes fused batch normalization in training, with the statistics of a group of `size` replicas."""
    x, scale, mean, variance = map(tf.convert_to_tensor, (x, scale, mean, variance))
    rank = x.shape.rank
    if rank is None:
        raise ValueError(
            "the rank of `x` is unknown, but batch normalization in programs requires it; use `tf.ensure_shape`"
        )
    axis = 1 if tf.compat.as_text(data_format).startswith("NC") else rank - 1
    axes = [i for i in range(rank) if i != axis]
    wide = tf.cast(x, scale.dtype)
    batch_mean, batch_variance = shared_moments(wide, axes, size)
    shape = [known_size(x, i) if i == axis else 1 for i in range(rank)]
    reshaped = [tf.reshape(tensor, shape) for tensor in (batch_mean, batch_variance, offset, scale)]
    y = tf.cast(tf.nn.batch_normalization(wide, *reshaped, variance_epsilon=epsilon), x.dtype)
    samples = tf.cast(size * tf.size(x) // known_size(x, axis), scale.dtype)
    # As in TensorFlow, only the moving variance is unbiased.
    moving_mean, moving_variance = batch_mean, batch_variance * (samples / tf.maximum(samples - 1, 1))
    if exponential_avg_factor != 1:
        moving_mean = (1 - exponential_avg_factor) * mean + exponential_avg_factor * moving_mean
        moving_variance = (1 - exponential_avg_factor) * variance + exponential_avg_factor * moving_variance
    # As in TensorFlow, only `y` has a gradient.
    moving_mean, moving_variance, batch_mean, batch_variance = map(
        tf.stop_gradient, (moving_mean, moving_variance, batch_mean, batch_variance)
    )
    return _ResultsV3(y, moving_mean, moving_variance, batch_mean, batch_variance, tf.zeros([0], scale.dtype))


def in_programs(fused: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the replacement of one of the TensorFlow functions that add fused batch normalization."""
    version = fused.__name__.lower()[-2:]
    is_third, is_second_or_third = version == "v3", version in ("v2", "v3")

    @functools.wraps(fused)
    def normalize(
        x: TensorLike,
        scale: TensorLike,
        offset: TensorLike,
        mean: TensorLike,
        variance: TensorLike,
        epsilon: float = 0.0001,
        exponential_avg_factor: float | None = 1,
        data_format: str = "NHWC",
        is_training: bool = True,
        name: str | None = None,
    ) -> Any:
        # Graphcore's TensorFlow supported these in half precision; TensorFlow supports only float32 and bfloat16.
        is_half = is_second_or_third and getattr(scale, "dtype", None) == tf.float16
        if is_half:
            scale, offset, mean, variance = (tf.cast(tensor, tf.float32) for tensor in (scale, offset, mean, variance))
        inputs = {"x": x, "scale": scale, "offset": offset, "mean": mean, "variance": variance}
        options: dict[str, Any] = {
            "epsilon": epsilon,
            "exponential_avg_factor": 1 if exponential_avg_factor is None else exponential_avg_factor,
            "data_format": data_format,
        }
        size = group_size() if is_training else 1
        if size == 1:
            results = fused(**inputs, **options, is_training=is_training, name=name)
        else:
            with tf.name_scope(name or "fused_batch_norm"):
                normalized = _normalize(**inputs, **options, size=size)
            results = normalized if is_third else _Results(*normalized[:5])
        if not is_half:
            return results
        y, *statistics = results[:3]
        return type(results)(y, *(tf.cast(tensor, tf.float16) for tensor in statistics), *results[3:])

    return normalize
