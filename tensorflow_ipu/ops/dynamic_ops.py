"""Reads and writes of slices whose sizes are static and whose start is computed at run time."""

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
    """Returns the slice `input[start : start + size : step]` along one dimension; `start` may be a tensor.

    The gradient of `input` is zero outside of the slice.

    Args:
      input: A tensor of static shape.
      dim: The dimension; a negative one counts from the last.
      start: The start of the slice: an integer, or an integer tensor of one element. It is clipped to
        `[0, input.shape[dim] - size]`, so that the slice lies inside of `input`.
      size: The number of indices that the slice spans.
      step: The distance of the indices that are read. The slice has the size `ceil(size / step)`.

    Raises:
      TypeError: `dim`, `size` or `step` is not an int, or `start` is not an integer.
      ValueError: There is no such dimension, the shape of `input` is not static, `size` is not from 1 to the size of
        the dimension, or `step` is below 1.
    """
    values = tf.convert_to_tensor(input)
    axis = _axis(values, dim)
    check_int("step", step, 1)
    _check_size(size, values, axis)
    part = _read(values, axis, _start(start, values, axis, size), size)
    return part[(slice(None),) * axis + (slice(None, None, step),)] if step > 1 else part


def dynamic_update(input: TensorLike, src: TensorLike, dim: int, start: TensorLike, size: int) -> tf.Tensor:  # noqa: A002
    """Returns a copy of `input`, with `src` in place of its slice `[start : start + size]` along one dimension.

    `src` has the type and the shape of `input`, except that its dimension `dim` has the size `size`. Gradients flow to
    `src`, and to `input` outside of the slice. See `dynamic_slice` for the other arguments.

    Raises:
      TypeError: `dim` or `size` is not an int, `start` is not an integer, or the types of the tensors differ.
      ValueError: There is no such dimension, the shape of `input` is not static, `size` is not from 1 to the size of
        the dimension, or `src` has another shape.
    """
    values, new = tf.convert_to_tensor(input), tf.convert_to_tensor(src)
    axis = _axis(values, dim)
    _check_size(size, values, axis)
    if values.dtype != new.dtype:
        raise TypeError(
            f"`input` and `src` must have one type, but have {values.dtype.name} and {new.dtype.name}; use `tf.cast`"
        )
    expected = values.shape.as_list()
    expected[axis] = size
    if not new.shape.is_compatible_with(expected):
        raise ValueError(
            f"`src` must have the shape of the slice that it replaces, {tf.TensorShape(expected)}, but has {new.shape}"
        )
    return _write(values, tf.ensure_shape(new, expected), axis, _start(start, values, axis, size))


def nop(input: TensorLike, name: str | None = None) -> tf.Tensor:  # noqa: A002
    """Returns the same tensor through a barrier, for debugging. XLA keeps it and merges no operations across it."""
    return control_flow_ops.barrier([input], insert_barrier_for_gradients=True, name=name or "nop")[0]


def _axis(values: tf.Tensor, dim: int) -> int:
    check_int("dim", dim)
    rank = values.shape.rank
    if rank is None or not -rank <= dim < rank:
        raise ValueError(f"`dim` must be a dimension of `input`, whose shape is {values.shape}, but is {dim}")
    if not values.shape.is_fully_defined():
        raise ValueError(f"`input` must have a static shape, but has {values.shape}; use `tf.ensure_shape`")
    return dim % rank


def _check_size(size: int, values: tf.Tensor, axis: int) -> None:
    check_int("size", size)
    largest = known_size(values, axis)
    if not 0 < size <= largest:
        raise ValueError(f"`size` must be from 1 to {largest}, the size of dimension {axis} of `input`, but is {size}")


def _start(start: TensorLike, values: tf.Tensor, axis: int, size: int) -> tf.Tensor:
    """Returns the start of the slice as an int32 scalar, clipped so that the slice lies inside of the tensor."""
    index = tf.convert_to_tensor(start)
    if not index.dtype.is_integer:
        raise TypeError(f"`start` must be an integer, but is of type {index.dtype.name}")
    index = tf.cast(tf.reshape(index, []), tf.int32)
    return tf.clip_by_value(index, 0, known_size(values, axis) - size)


def _read(values: tf.Tensor, axis: int, start: tf.Tensor, size: int) -> tf.Tensor:
    shape = values.shape.as_list()

    @tf.custom_gradient
    def read(values: tf.Tensor, start: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
            return _write(tf.zeros(shape, upstream.dtype), upstream, axis, start), None

        sizes = [*shape[:axis], size, *shape[axis + 1 :]]
        read_slice = xla.read_at if programs.is_tracing() else tf.slice
        return tf.ensure_shape(read_slice(values, _begin(start, axis, len(shape)), tf.constant(sizes)), sizes), gradient

    return read(values, start)


def _write(values: tf.Tensor, new: tf.Tensor, axis: int, start: tf.Tensor) -> tf.Tensor:
    size = known_size(new, axis)

    @tf.custom_gradient
    def write(values: tf.Tensor, new: tf.Tensor, start: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, None]:
            outside = _write(upstream, tf.zeros(new.shape, upstream.dtype), axis, start)
            return outside, _read(upstream, axis, start, size), None

        if programs.is_tracing():
            return xla.written_at(values, new, _begin(start, axis, values.shape.rank)), gradient
        head, tail = tf.range(start), tf.range(start + size, known_size(values, axis))
        parts = [tf.gather(values, head, axis=axis), new, tf.gather(values, tail, axis=axis)]
        return tf.ensure_shape(tf.concat(parts, axis), values.shape), gradient

    return write(values, new, start)


def _begin(start: tf.Tensor, axis: int, rank: int) -> tf.Tensor:
    return tf.stack([start if i == axis else tf.constant(0) for i in range(rank)])
