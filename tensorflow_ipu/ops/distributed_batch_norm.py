"""Batch normalization with the statistics of several replicas: `distributed_batch_norm_replica_group_size`.

While a program is traced for which that option is above 1, TensorFlow's fused batch normalization in training is made of
operations that have the replicas of a group meet: once for the statistics, and once for their gradient. There, and for old
scripts, `scale` and the like may be float16.
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
_Results = collections.namedtuple("_Results", _FIELDS[:5])  # noqa: PYI024  (Like TensorFlow's own.)
_ResultsV3 = collections.namedtuple("_ResultsV3", _FIELDS)  # noqa: PYI024


def group_size() -> int:
    """Returns how many consecutive replicas of the program being traced share statistics; 1 if none is traced."""
    if not programs.is_tracing():
        return 1
    options = _state.options_of_device(strategy_ordinal() or 0)
    size = 1 if options is None else options[_OPTION]
    ipus = programs.ipus_traced_for()
    if ipus is not None and ipus % size:
        raise ValueError(
            f"`{_OPTION}={size}` does not divide the replicas of a device of {ipus} IPU{'s' if ipus > 1 else ''}: set it to"
            " a divisor of their number, or to 1, which leaves each replica its own statistics"
        )
    return size


def shared_moments(x: tf.Tensor, axes: Sequence[int], size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes the mean and variance over some dimensions of the tensors of all replicas of a group.

    Their gradients are sums over the group, as is right for the sum of the replicas' losses.
    """
    own = tf.nn.moments(x, list(axes))
    means, variances = _collectives.all_gather("batch_norm", own, ReplicaGroups(size))
    shape = own[0].shape
    mean = tf.reduce_mean(means, 0)
    # Without the cancellation of a difference of two large means.
    variance = tf.reduce_mean(variances + tf.math.squared_difference(means, mean), 0)
    return tf.ensure_shape(mean, shape), tf.ensure_shape(variance, shape)


def _normalized(
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
    """Computes all results of fused batch normalization in training, with the statistics of a group."""
    x, scale, mean, variance = map(tf.convert_to_tensor, (x, scale, mean, variance))
    rank = x.shape.rank
    if rank is None:
        raise ValueError(
            "the rank of `x` is not known, and batch normalization has to know it in programs: give it a shape"
        )
    axis = 1 if tf.compat.as_text(data_format).startswith("NC") else rank - 1
    axes = [i for i in range(rank) if i != axis]
    wide = tf.cast(x, scale.dtype)
    batch_mean, batch_variance = shared_moments(wide, axes, size)
    along = [known_size(x, i) if i == axis else 1 for i in range(rank)]
    spread = [tf.reshape(tensor, along) for tensor in (batch_mean, batch_variance, offset, scale)]
    y = tf.cast(tf.nn.batch_normalization(wide, *spread, variance_epsilon=epsilon), x.dtype)
    samples = tf.cast(size * tf.size(x) // known_size(x, axis), scale.dtype)
    # TensorFlow has the unbiased variance for moving averages, and for them alone.
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
    """Replaces one of TensorFlow's functions that make the operation; all have the same arguments."""
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
        # Graphcore's TensorFlow had the operation in half precision; TensorFlow's has float32 and bfloat16 alone.
        in_half = is_second_or_third and getattr(scale, "dtype", None) == tf.float16
        if in_half:
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
                normalized = _normalized(**inputs, **options, size=size)
            results = normalized if is_third else _Results(*normalized[:5])
        if not in_half:
            return results
        y, *statistics = results[:3]
        return type(results)(y, *(tf.cast(tensor, tf.float16) for tensor in statistics), *results[3:])

    return normalize
