"""Lookups in embedding tables: in the program, and on the host."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, SupportsIndex

import tensorflow as tf

from tensorflow_ipu._base.checks import check_bool
from tensorflow_ipu._base.tensors import known_size
from tensorflow_ipu.ops._host_embedding import (
    HostEmbedding,
    HostEmbeddingOptimizerSpec,
    HostEmbeddingSGDGAOptimizerSpec,
    create_host_embedding,
)

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import TensorLike

__all__ = [
    "HostEmbedding",
    "HostEmbeddingOptimizerSpec",
    "HostEmbeddingSGDGAOptimizerSpec",
    "create_host_embedding",
    "embedding_lookup",
]


def embedding_lookup(
    params: tf.Tensor | tf.Variable,
    ids: TensorLike,
    serialization_factor: int = 1,
    indices_are_sorted: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Looks rows of a table up, as `tf.gather` does, if asked for in parts of the table one after the other.

    Args:
      params: The table: one dense tensor or variable, of shape [rows, ...].
      ids: Row numbers, integers of any shape. Below 0 or beyond the last row is an error where `tf.gather` notices it,
        which compiled programs do not.
      serialization_factor: In how many parts of equal size the table is used, which needs less memory at once and more
        time. The numbers are the same.
      indices_are_sorted: A promise that `ids` ascend. It makes lookups faster on hardware, and no difference here.
      name: A name for the operation.

    Returns:
      A tensor of the type of `params` and of shape `ids.shape + params.shape[1:]`.

    Raises:
      ValueError: `serialization_factor` is below 1 or does not divide the number of rows, or `params` is a scalar.
      TypeError: It is no whole number, `indices_are_sorted` no bool, `ids` no integers, or `params` not one tensor.
    """
    factor = checked_factor(serialization_factor)
    check_bool("indices_are_sorted", indices_are_sorted)
    if isinstance(params, (list, tuple)):
        raise TypeError(
            f"`params` must be one tensor, but is a {type(params).__name__} of {len(params)}; `tf.concat` its tensors"
        )
    with tf.name_scope(name or "embedding_lookup"):
        ids = tf.convert_to_tensor(ids, name="ids")
        if not ids.dtype.is_integer:
            raise TypeError(f"`ids` must be integers, the numbers of rows of `params`, but are {ids.dtype.name}")
        if ids.dtype not in (tf.int32, tf.int64):
            ids = tf.cast(ids, tf.int32)  # `tf.gather` takes no others.
        if params.shape.rank == 0:
            raise ValueError("`params` must have rows, but is a scalar")
        if factor == 1:
            return tf.gather(params, ids)
        table = tf.convert_to_tensor(params, name="params")
        rows = table.shape[0] if table.shape.rank else None
        if rows is None:
            raise ValueError(f"`params` has shape {table.shape}; to use it in parts, its number of rows must be known")
        if rows % factor:
            raise ValueError(
                f"`serialization_factor={factor}` must divide the number of rows of `params`, which is {rows}"
            )
        return _in_parts(table, ids, factor)


def checked_factor(serialization_factor: SupportsIndex) -> int:
    """The number of parts that a user asks for."""
    try:
        factor = operator.index(serialization_factor)
    except TypeError as exc:
        raise TypeError(f"`serialization_factor` must be a whole number, but is `{serialization_factor!r}`") from exc
    if factor < 1:
        raise ValueError(f"`serialization_factor` must be 1 or more, but is `{factor}`")
    return factor


def _in_parts(table: tf.Tensor, ids: tf.Tensor, factor: int) -> tf.Tensor:
    """Asks each part for all ids; rows of the others count as zero."""
    size = known_size(table, 0) // factor
    found = []
    for part in range(factor):
        local = ids - part * size
        inside = tf.logical_and(local >= 0, local < size)
        rows = tf.gather(table[part * size : (part + 1) * size], tf.clip_by_value(local, 0, size - 1))
        inside = tf.reshape(inside, tf.concat([tf.shape(ids), tf.ones([table.shape.rank - 1], tf.int32)], 0))
        found.append(tf.where(inside, rows, tf.zeros([], table.dtype)))
    return tf.add_n(found)
