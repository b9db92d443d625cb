"""Matrix products that are computed in parts, and sums of segments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._base.checks import Faults
from tensorflow_ipu.ops.embedding_ops import checked_factor

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import TensorLike

__all__ = ["segment_sum", "serialized_matmul"]

_DIMENSIONS = ("a_columns", "a_rows_b_columns", "b_rows")


def serialized_matmul(
    a: TensorLike,
    b: TensorLike,
    serialization_factor: int,
    serialization_dimension: str,
    transpose_a: bool = False,
    transpose_b: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Multiplies two tensors of the same type and of rank 2 or more, as `tf.matmul` does, in several smaller products.

    `serialization_dimension` names the dimension that is split:

        serialization_dimension   dimension   the products are
        "a_columns"               m           concatenated
        "a_rows_b_columns"        k           summed
        "b_rows"                  n           concatenated

    Args:
      a: A tensor of shape [..., m, k], after its transposition.
      b: A tensor of shape [..., k, n], after its transposition.
      serialization_factor: The number of products. It must divide the size of the dimension that is split.
      serialization_dimension: The dimension to split, as above.
      transpose_a: Whether to transpose `a` first.
      transpose_b: Whether to transpose `b` first.
      name: A name for the operation.

    Returns:
      The product, of shape [..., m, n].

    Raises:
      ValueError: The factor is below 1 or does not divide the size of the dimension, there is no dimension of that
        name, a rank is below 2, or the shapes do not match.
      TypeError: The factor is not an integer.
    """
    factor = checked_factor(serialization_factor)
    with tf.name_scope(name or "serialized_matmul"):
        a, b = tf.convert_to_tensor(a, name="a"), tf.convert_to_tensor(b, name="b")
        faults = Faults()
        if serialization_dimension not in _DIMENSIONS:
            faults.add(
                ValueError,
                f"`serialization_dimension` must be one of {', '.join(map(repr, _DIMENSIONS))}, but is"
                f" `{serialization_dimension!r}`",
            )
        for argument, tensor in (("a", a), ("b", b)):
            if tensor.shape.rank is None or tensor.shape.rank < 2:
                faults.add(ValueError, f"`{argument}` must have rank 2 or more, but has shape {tensor.shape}")
        faults.raise_any()
        m, k = a.shape[-2:] if not transpose_a else a.shape[:-3:-1]
        b_k, n = b.shape[-2:] if not transpose_b else b.shape[:-3:-1]
        if k is not None and b_k is not None and k != b_k:
            raise ValueError(f"`a` has {k} columns and `b` has {b_k} rows, after transposition; the two must be equal")
        size = {"a_columns": m, "a_rows_b_columns": k or b_k, "b_rows": n}[serialization_dimension]
        if size is not None and size % factor:
            raise ValueError(
                f"`serialization_factor={factor}` must divide the dimension that"
                f" `serialization_dimension={serialization_dimension!r}` splits, which has the size {size}"
            )
        axis_m, axis_k = (-1, -2) if transpose_a else (-2, -1)
        axis_b_k, axis_n = (-1, -2) if transpose_b else (-2, -1)
        split_a = {"a_columns": axis_m, "a_rows_b_columns": axis_k}.get(serialization_dimension)
        split_b = {"b_rows": axis_n, "a_rows_b_columns": axis_b_k}.get(serialization_dimension)
        parts_a = [a] * factor if split_a is None else tf.split(a, factor, split_a)
        parts_b = [b] * factor if split_b is None else tf.split(b, factor, split_b)
        products = [
            tf.matmul(part_a, part_b, transpose_a=transpose_a, transpose_b=transpose_b)
            for part_a, part_b in zip(parts_a, parts_b, strict=True)
        ]
        if serialization_dimension == "a_rows_b_columns":
            return tf.add_n(products)
        return tf.concat(products, -2 if serialization_dimension == "a_columns" else -1)


def segment_sum(data: TensorLike, segment_ids: TensorLike, num_segments: int, name: str | None = None) -> tf.Tensor:
    """Sums the rows of each segment, as `tf.math.segment_sum` does, for a static number of segments.

    Args:
      data: A tensor of shape [rows, ...].
      segment_ids: Ascending integers of shape [rows], from 0 to `num_segments - 1`.
      num_segments: The number of segments.
      name: A name for the operation.

    Returns:
      A tensor of shape [num_segments, ...] and the type of `data`. Segments without rows are zero.

    Raises:
      ValueError: A shape is not static, `num_segments` is below 1, or `segment_ids` is not as long as `data`.
    """
    with tf.name_scope(name or "segment_sum"):
        data, segment_ids = tf.convert_to_tensor(data, name="data"), tf.convert_to_tensor(segment_ids)
        faults = Faults()
        for argument, tensor in (("data", data), ("segment_ids", segment_ids)):
            if not tensor.shape.is_fully_defined():
                faults.add(ValueError, f"the shape of `{argument}` must be known, but is {tensor.shape}")
        if num_segments < 1:
            faults.add(ValueError, f"`num_segments` must be 1 or more, but is `{num_segments}`")
        faults.raise_any()
        if segment_ids.shape.rank != 1 or segment_ids.shape[0] != data.shape[:1].num_elements():
            raise ValueError(
                f"`segment_ids` has shape {segment_ids.shape}, but must have one integer for each row of `data`, whose"
                f" shape is {data.shape}"
            )
        return tf.math.unsorted_segment_sum(data, segment_ids, num_segments)
