"""Copies of sequences of rows between tensors, such as padding sequences of different lengths or removing the padding."""

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
    """Copies sequences of consecutive rows from `src` into `dst`.

    For each sequence i and each j below `num_elems[i]`, row `src_offsets[i] + j` is copied to row `dst_offsets[i] + j`. If
    sequences overlap in the result, the last one wins. Rows beyond the end of either tensor are not copied.

    Gradients flow to the copied rows of `src` and, without `zero_unused`, to the rows of `dst` that were not overwritten.

    Args:
      dst: The initial result: a tensor [rows, ...] of rank 2 or more.
      src: The source: a tensor of the same dtype and shape, except for the number of rows.
      num_elems: The number of rows of each sequence: integers [sequences].
      src_offsets: The first row of each sequence in `src`: integers [sequences].
      dst_offsets: The first row of each sequence in the result: integers [sequences].
      zero_unused: True if rows of the result outside all sequences are zeros; False if they are the rows of `dst`.

    Raises:
      ValueError: `num_elems`, `src_offsets` and `dst_offsets` do not have the same shape [sequences] with at least one
        sequence; `src` and `dst` differ in more than the number of rows; or their rank is below 2.
      TypeError: The numbers of rows or the offsets are not integers, the dtypes of `src` and `dst` differ, or
        `zero_unused` is not a bool.
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
    """Concatenates sequences of rows of `src`, such as padded sequences without their padding.

    Gradients flow to the copied rows of `src`.

    Args:
      src: A tensor [rows, ...] of rank 2 or more.
      num_elems: The number of rows of each sequence: integers [sequences].
      src_offsets: The first row of each sequence in `src`: integers [sequences].
      total_elements: The number of rows of the result, 1 or more. Rows after the last sequence are zeros.

    Raises:
      ValueError: `num_elems` and `src_offsets` do not have the same shape [sequences] with at least one sequence; the rank
        of `src` is below 2; or `total_elements` is below 1.
      TypeError: The numbers of rows or the offsets are not integers.
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
    """Copies concatenated sequences of rows of `src` into `dst`: the inverse of `sequence_slice_unpack`.

    See `sequence_slice` for the arguments, the errors and the gradients.
    """
    with tf.name_scope("sequence_slice_pack"):
        counts, offsets = _integers({"num_elems": num_elems, "dst_offsets": dst_offsets})
        dst, src = tf.convert_to_tensor(dst, name="dst"), tf.convert_to_tensor(src, name="src")
        _check(dst, src, zero_unused)
        initial = None if zero_unused else dst
        return _copied(initial, src, counts, tf.cumsum(counts, exclusive=True), offsets, _rows(dst))


def _copied(
    dst: tf.Tensor | None,
    src: tf.Tensor,
    num_elems: tf.Tensor,
    src_offsets: tf.Tensor,
    dst_offsets: tf.Tensor,
    rows: int | tf.Tensor,
) -> tf.Tensor:
    """Copies the sequences into `dst`, or into zeros if it is None.

    Each row of the result searches for the last sequence that contains it, and gathers its row of `src`. So shapes do not
    depend on `num_elems`. The search takes `rows * sequences` comparisons. Example: with `num_elems=[2, 1]`,
    `src_offsets=[4, 0]` and `dst_offsets=[0, 1]`, the rows of the result are `src[4]`, `src[0]`, and then rows of `dst`.
    """
    row = tf.range(rows)[:, tf.newaxis]
    position = row - dst_offsets  # [rows, sequences]
    source = src_offsets + position
    is_contained = (position >= 0) & (position < num_elems) & (source >= 0) & (source < _rows(src))
    sequence = tf.reduce_max(tf.where(is_contained, tf.range(tf.size(num_elems)), -1), axis=1)
    is_copied = sequence >= 0
    source_row = tf.gather(source, tf.maximum(sequence, 0), axis=1, batch_dims=1)
    copied = tf.gather(_with_dense_gradient(src), tf.where(is_copied, source_row, 0))
    unused = tf.zeros_like(copied) if dst is None else dst
    mask = tf.reshape(is_copied, [-1, *[1] * (len(src.shape) - 1)])
    return tf.where(mask, copied, unused)


@tf.custom_gradient
def _with_dense_gradient(src: tf.Tensor) -> tuple[tf.Tensor, Callable[..., tf.Tensor]]:
    """Returns `src`, with a gradient that is a dense tensor instead of `tf.IndexedSlices`."""
    return tf.identity(src), tf.convert_to_tensor


def _rows(tensor: tf.Tensor) -> int | tf.Tensor:
    return tf.shape(tensor)[0] if tensor.shape[0] is None else known_size(tensor, 0)


def _integers(arguments: dict[str, TensorLike]) -> list[tf.Tensor]:
    """Converts the arguments to int32 vectors of the same length."""
    tensors = {name: tf.convert_to_tensor(value, name=name) for name, value in arguments.items()}
    shapes = {tuple(tensor.shape) if tensor.shape.rank is not None else None for tensor in tensors.values()}
    shape = next(iter(shapes))
    if len(shapes) > 1 or shape is None or len(shape) != 1 or not shape[0]:
        listed = ", ".join(f"`{name}` {tensor.shape}" for name, tensor in tensors.items())
        raise ValueError(
            f"the numbers of rows and the offsets must have the same shape [sequences], with at least 1 sequence, but are:"
            f" {listed}"
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
            f"`src` has shape {src.shape}, and `dst` {dst.shape}; they may only differ in the number of rows"
        )
