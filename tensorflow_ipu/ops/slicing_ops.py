"""Copies of runs of rows from one tensor to another: sequences of different lengths, padded or one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._base.checks import Faults, check_bool, check_int
from tensorflow_ipu._base.tensors import known_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorflow_ipu._base.types import TensorLike

__all__ = ["sequence_slice", "sequence_slice_pack", "sequence_slice_unpack"]


def sequence_slice(
    dst: TensorLike,
    src: TensorLike,
    num_elems: TensorLike,
    src_offsets: TensorLike,
    dst_offsets: TensorLike,
    zero_unused: bool,
) -> tf.Tensor:
    """Copies runs of rows of `src` to places in `dst`.

    Of run i, row `src_offsets[i] + j` goes to row `dst_offsets[i] + j`, for each j below `num_elems[i]`. Where runs
    overlap in the result, the last one of them counts; what lies beyond the end of either tensor is left out.

    Gradients flow to the rows of `src` that were copied and, without `zero_unused`, to those of `dst` that were kept.

    Args:
      dst: What the result begins as: a tensor [rows, ...] of rank 2 or more.
      src: Where rows come from: a tensor of the same type, and of the same shape but for the number of rows.
      num_elems: How many rows each run has: integers [runs].
      src_offsets: Where each begins in `src`: integers [runs].
      dst_offsets: Where each begins in the result: integers [runs].
      zero_unused: Whether rows of the result that no run reaches are zeros, and not those of `dst`.

    Raises:
      ValueError: `num_elems`, `src_offsets` and `dst_offsets` are not of one shape [runs] with at least one run, or `src`
        and `dst` differ in more than the number of rows, or have no rank of 2 or more.
      TypeError: Numbers are no integers, the types of `src` and `dst` differ, or `zero_unused` is no bool.
    """
    with tf.name_scope("sequence_slice"):
        counts, sources, places = _integers(
            {"num_elems": num_elems, "src_offsets": src_offsets, "dst_offsets": dst_offsets}
        )
        dst, src = tf.convert_to_tensor(dst, name="dst"), tf.convert_to_tensor(src, name="src")
        _check(dst, src, zero_unused)
        return _copied(None if zero_unused else dst, src, counts, sources, places, _rows(dst))


def sequence_slice_unpack(
    src: TensorLike, num_elems: TensorLike, src_offsets: TensorLike, total_elements: int
) -> tf.Tensor:
    """Copies runs of rows of `src` one after the other: padded sequences become one without padding.

    Gradients flow to the rows of `src` that were copied.

    Args:
      src: A tensor [rows, ...] of rank 2 or more.
      num_elems: How many rows each run has: integers [runs].
      src_offsets: Where each begins in `src`: integers [runs].
      total_elements: How many rows the result has, 1 or more. Those after the last run are zeros.

    Raises:
      ValueError: `num_elems` and `src_offsets` are not of one shape [runs] with at least one run, `src` has no rank of 2
        or more, or `total_elements` is below 1.
      TypeError: Numbers are no integers.
    """
    with tf.name_scope("sequence_slice_unpack"):
        counts, offsets = _integers({"num_elems": num_elems, "src_offsets": src_offsets})
        src = tf.convert_to_tensor(src, name="src")
        faults = Faults()
        _check_rank(faults, "src", src)
        faults.check(check_int, "total_elements", total_elements, 1)
        faults.raise_any()
        return _copied(None, src, counts, offsets, tf.cumsum(counts, exclusive=True), total_elements)


def sequence_slice_pack(
    dst: TensorLike, src: TensorLike, num_elems: TensorLike, dst_offsets: TensorLike, zero_unused: bool
) -> tf.Tensor:
    """Copies runs of rows that lie one after the other in `src` to places in `dst`: the inverse of unpacking.

    See `sequence_slice` for the arguments, what is returned and raised, and the gradients.
    """
    with tf.name_scope("sequence_slice_pack"):
        counts, offsets = _integers({"num_elems": num_elems, "dst_offsets": dst_offsets})
        dst, src = tf.convert_to_tensor(dst, name="dst"), tf.convert_to_tensor(src, name="src")
        _check(dst, src, zero_unused)
        kept = None if zero_unused else dst
        return _copied(kept, src, counts, tf.cumsum(counts, exclusive=True), offsets, _rows(dst))


def _copied(
    dst: tf.Tensor | None,
    src: tf.Tensor,
    num_elems: tf.Tensor,
    src_offsets: tf.Tensor,
    dst_offsets: tf.Tensor,
    rows: int | tf.Tensor,
) -> tf.Tensor:
    """Copies the runs into `dst`, or into zeros: each row of the result looks for the run that it is in."""
    row = tf.range(rows)[:, tf.newaxis]
    within = row - dst_offsets  # [rows, runs]
    source = src_offsets + within
    reached = (within >= 0) & (within < num_elems) & (source >= 0) & (source < _rows(src))
    run = tf.reduce_max(tf.where(reached, tf.range(tf.size(num_elems)), -1), axis=1)
    is_copied = run >= 0
    place = tf.gather(source, tf.maximum(run, 0), axis=1, batch_dims=1)
    copied = tf.gather(_with_whole_gradient(src), tf.where(is_copied, place, 0))
    other = tf.zeros_like(copied) if dst is None else dst
    along = tf.reshape(is_copied, [-1, *[1] * (len(src.shape) - 1)])
    return tf.where(along, copied, other)


@tf.custom_gradient
def _with_whole_gradient(src: tf.Tensor) -> tuple[tf.Tensor, Callable[..., tf.Tensor]]:
    """Returns the tensor; its gradient is a tensor too, and no list of its rows."""
    return tf.identity(src), tf.convert_to_tensor


def _rows(tensor: tf.Tensor) -> int | tf.Tensor:
    return tf.shape(tensor)[0] if tensor.shape[0] is None else known_size(tensor, 0)


def _integers(arguments: dict[str, TensorLike]) -> list[tf.Tensor]:
    """Converts the arguments to int32 vectors of one length."""
    tensors = {name: tf.convert_to_tensor(value, name=name) for name, value in arguments.items()}
    shapes = {tuple(tensor.shape) if tensor.shape.rank is not None else None for tensor in tensors.values()}
    shape = next(iter(shapes))
    if len(shapes) > 1 or shape is None or len(shape) != 1 or not shape[0]:
        listed = ", ".join(f"`{name}` {tensor.shape}" for name, tensor in tensors.items())
        raise ValueError(
            f"the numbers of rows and the offsets must be of one shape [runs], with 1 run or more, but are: {listed}"
        )
    faults = Faults()
    for name, tensor in tensors.items():
        if not tensor.dtype.is_integer:
            faults.add(TypeError, f"`{name}` must have integers, but is {tensor.dtype.name}")
    faults.raise_any()
    return [tf.cast(tensor, tf.int32) for tensor in tensors.values()]


def _check_rank(faults: Faults, name: str, tensor: tf.Tensor) -> None:
    if tensor.shape.rank is None or tensor.shape.rank < 2:
        faults.add(ValueError, f"`{name}` must be of rank 2 or more, but has shape {tensor.shape}")


def _check(dst: tf.Tensor, src: tf.Tensor, zero_unused: bool) -> None:
    check_bool("zero_unused", zero_unused)
    faults = Faults()
    _check_rank(faults, "dst", dst)
    _check_rank(faults, "src", src)
    if dst.dtype != src.dtype:
        faults.add(TypeError, f"`src` is {src.dtype.name}, and `dst` is {dst.dtype.name}; they must be of one type")
    faults.raise_any()
    if not src.shape[1:].is_compatible_with(dst.shape[1:]):
        raise ValueError(
            f"`src` has shape {src.shape}, and `dst` {dst.shape}; they may differ in the number of rows alone"
        )
