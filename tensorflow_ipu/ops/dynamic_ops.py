"""Slices at places that only the run knows, of sizes that are known before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._base.checks import check_int
from tensorflow_ipu._base.tensors import known_size
from tensorflow_ipu._tensorflow import xla
from tensorflow_ipu.ops import control_flow_ops

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import TensorLike

__all__ = ["dynamic_slice", "dynamic_update", "nop"]


def dynamic_slice(input: TensorLike, dim: int, start: TensorLike, size: int, step: int = 1) -> tf.Tensor:  # noqa: A002
    """Takes a part of a tensor along one dimension, of `ceil(size / step)` places, from a place that may be computed.

    Gradients flow to the part of `input` that was taken.

    Args:
      input: A tensor.
      dim: The dimension; negative ones count from the last.
      start: A whole number, or a tensor of one: where the part begins. One beyond an end is moved, so that all of the part
        is in the tensor.
      size: How far the part reaches.
      step: Of every so many places in it the first is taken.

    Raises:
      TypeError: `dim`, `size` or `step` is no whole number, or `start` is of another type.
      ValueError: There is no such dimension, sizes of `input` are not known, the part does not fit, or `step` is below 1.
    """
    values = tf.convert_to_tensor(input)
    axis = _axis(values, dim)
    check_int("step", step, 1)
    _check_size(size, values, axis)
    part = _read(values, axis, _start(start, values, axis, size), size)
    return part[(slice(None),) * axis + (slice(None, None, step),)] if step > 1 else part


def dynamic_update(input: TensorLike, src: TensorLike, dim: int, start: TensorLike, size: int) -> tf.Tensor:  # noqa: A002
    """Replaces a part of a tensor like `input` along one dimension, at a place that may be computed.

    Gradients flow to `src`, and to what it left of `input`. `src` is of the type of `input`, and as large but for `dim`,
    where it has `size` places. See `dynamic_slice` for the other arguments.

    Raises:
      TypeError: `dim` or `size` is no whole number, `start` is of another type, or the tensors are of two types.
      ValueError: There is no such dimension, sizes of `input` are not known, the part does not fit, or `src` is not as large.
    """
    values, new = tf.convert_to_tensor(input), tf.convert_to_tensor(src)
    axis = _axis(values, dim)
    _check_size(size, values, axis)
    if values.dtype != new.dtype:
        raise TypeError(f"`input` is of type {values.dtype.name}, and `src` of type {new.dtype.name}: cast one of them")
    expected = values.shape.as_list()
    expected[axis] = size
    if not new.shape.is_compatible_with(expected):
        raise ValueError(
            f"`src` has shape {new.shape}, and takes the place of a part of shape {tf.TensorShape(expected)}"
        )
    return _write(values, tf.ensure_shape(new, expected), axis, _start(start, values, axis, size))


def nop(input: TensorLike, name: str | None = None) -> tf.Tensor:  # noqa: A002
    """Returns the same tensor, through an operation that programs keep: nothing is merged across it. For debugging."""
    return control_flow_ops.barrier([input], insert_barrier_for_gradients=True, name=name or "nop")[0]


def _axis(values: tf.Tensor, dim: int) -> int:
    check_int("dim", dim)
    rank = values.shape.rank
    if rank is None or not -rank <= dim < rank:
        raise ValueError(f"`dim` is {dim}, and `input` has shape {values.shape}")
    if not values.shape.is_fully_defined():
        raise ValueError(f"`input` has shape {values.shape}; its sizes must be known before: use `tf.ensure_shape`")
    return dim % rank


def _check_size(size: int, values: tf.Tensor, axis: int) -> None:
    check_int("size", size)
    whole = known_size(values, axis)
    if not 0 < size <= whole:
        raise ValueError(f"`size` is {size}, and dimension {axis} of `input` has {whole} places: choose 1 to {whole}")


def _start(start: TensorLike, values: tf.Tensor, axis: int, size: int) -> tf.Tensor:
    """Returns the place where the part begins, a scalar, moved into the tensor."""
    place = tf.convert_to_tensor(start)
    if not place.dtype.is_integer:
        raise TypeError(f"`start` must be a whole number, but is of type {place.dtype.name}")
    place = tf.cast(tf.reshape(place, []), tf.int32)
    return tf.clip_by_value(place, 0, known_size(values, axis) - size)


def _read(values: tf.Tensor, axis: int, start: tf.Tensor, size: int) -> tf.Tensor:
    shape = values.shape.as_list()

    @tf.custom_gradient
    def read(values: tf.Tensor, start: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
            return _write(tf.zeros(shape, upstream.dtype), upstream, axis, start), None

        sizes = [*shape[:axis], size, *shape[axis + 1 :]]
        take = xla.read_at if programs.is_tracing() else tf.slice
        return tf.ensure_shape(take(values, _begin(start, axis, len(shape)), tf.constant(sizes)), sizes), gradient

    return read(values, start)


def _write(values: tf.Tensor, new: tf.Tensor, axis: int, start: tf.Tensor) -> tf.Tensor:
    size = known_size(new, axis)

    @tf.custom_gradient
    def write(values: tf.Tensor, new: tf.Tensor, start: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, None]:
            left = _write(upstream, tf.zeros(new.shape, upstream.dtype), axis, start)
            return left, _read(upstream, axis, start, size), None

        if programs.is_tracing():
            return xla.written_at(values, new, _begin(start, axis, values.shape.rank)), gradient
        before, after = tf.range(start), tf.range(start + size, known_size(values, axis))
        parts = [tf.gather(values, before, axis=axis), new, tf.gather(values, after, axis=axis)]
        return tf.ensure_shape(tf.concat(parts, axis), values.shape), gradient

    return write(values, new, start)


def _begin(start: tf.Tensor, axis: int, rank: int) -> tf.Tensor:
    return tf.stack([start if at == axis else tf.constant(0) for at in range(rank)])
