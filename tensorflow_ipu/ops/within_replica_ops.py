"""Collectives between the shards of one replica, on lists with one tensor per shard."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._base.checks import is_int
from tensorflow_ipu._native.library import ops
from tensorflow_ipu.ops import _collectives
from tensorflow_ipu.programs import ALL_IPUS, SHARD_ATTRIBUTE

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import TensorLike

__all__ = ["all_gather", "all_reduce", "reduce_scatter"]

_OPERATIONS: dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {
    "COLLECTIVE_OP_ADD": tf.add,
    "COLLECTIVE_OP_LOGICAL_AND": tf.logical_and,
    "COLLECTIVE_OP_LOGICAL_OR": tf.logical_or,
    "COLLECTIVE_OP_MAX": tf.maximum,
    "COLLECTIVE_OP_MIN": tf.minimum,
    "COLLECTIVE_OP_MUL": tf.multiply,
}
_LOCAL = "COLLECTIVE_OP_LOCAL"


def all_reduce(input_shards: Sequence[TensorLike], op: str) -> tuple[tf.Tensor, ...]:
    """Reduces vectors elementwise. Every shard gets the result, which is as long as the longest input.

        [a, b]        [a + c, b + d, 0 + e]
        [c, d, e]  -> [a + c, b + d, 0 + e]

    Args:
      input_shards: Tensors of the same dtype and of rank 0 or 1, one per shard, in the order of the shards. Shorter tensors
        are padded with zeros.
      op: The reduction: `COLLECTIVE_OP_ADD`, `_MUL`, `_MIN` or `_MAX` for numeric types, `_LOGICAL_AND` or `_LOGICAL_OR`
        for booleans. With `COLLECTIVE_OP_LOCAL` each shard keeps its own vector.

    Raises:
      ValueError: The tensors differ in dtype or rank, a tensor is listed twice or has rank 2 or more, or `op` is
        unsupported.
      TypeError: `op` does not support the dtype of the tensors.
      tf.errors.FailedPreconditionError: A tensor was created on another shard than its position in `input_shards`. In a
        graph of TensorFlow 1, the run of the program raises it.
    """
    return tuple(map(tf.identity, _reduced(input_shards, op)))


def reduce_scatter(input_shards: Sequence[TensorLike], op: str) -> tuple[tf.Tensor, ...]:
    """Reduces vectors elementwise. Each shard gets a part of the result.

        [a, b, c]     [0]
        [d, e, f]     [b + e + h + k]
        [g, h, i]     [c + f + i + l]
        [j, k, l]  -> [a + d + g + j]

    See `all_reduce` for the arguments and errors.

    Returns:
      A vector for each of the k shards, of length ceil(n / k) for a result of n elements. Part i of the result starts at
      element `n * i // k`, and a shorter part is padded with a zero. With 2 shards, the first shard gets part 0. With 4
      shards, shards 0 to 3 get parts 0, 2, 3 and 1, as the SDK documents. With other numbers of shards, which the SDK does
      not document, they get first the even parts, then the odd parts in reverse order.
    """
    reduced = _reduced(input_shards, op)
    count, length = len(reduced), _length(reduced[0])
    longest = -(-length // count)
    # This is the order in a ring of IPUs that are wired as a ladder.
    parts = [*range(0, count, 2), *reversed(range(1, count, 2))]
    return tuple(
        _padded(vector[length * part // count : length * (part + 1) // count], longest)
        for vector, part in zip(reduced, parts, strict=True)
    )


def all_gather(input_shards: Sequence[TensorLike], axis: int = 0) -> tuple[tf.Tensor, ...]:
    """Concatenates the tensors of all shards, which have the same dtype and rank. Every shard gets the result.

    The shapes may only differ along `axis`. Scalars are concatenated to a vector.

    Raises:
      ValueError: The tensors differ in dtype, in rank, or in another axis than `axis`; a tensor is listed twice; or `axis`
        is out of range.
      tf.errors.FailedPreconditionError: As for `all_reduce`.
    """
    shards = _shards(input_shards)
    rank = shards[0].shape.rank
    if rank == 0:
        shards = [tf.reshape(shard, [1]) for shard in shards]
        rank = 1
    if not is_int(axis) or not -rank <= axis < rank:
        raise ValueError(f"`axis` is {axis!r}, but the tensors of `input_shards` have rank {rank}")
    axis %= rank
    first = shards[0].shape
    for shard in shards[1:]:
        if first[:axis] != shard.shape[:axis] or first[axis + 1 :] != shard.shape[axis + 1 :]:
            raise ValueError(
                f"the tensors of `input_shards` must have the same sizes except along `axis`, which is {axis}, but have"
                f" shapes {', '.join(str(shard.shape) for shard in shards)}"
            )
    gathered = tf.concat(shards, axis)
    return tuple(tf.identity(gathered) for _ in shards)


def _shards(input_shards: Sequence[TensorLike]) -> list[tf.Tensor]:
    """Converts the tensors, and checks that they are different and have the same dtype and rank."""
    if not isinstance(input_shards, (list, tuple)) or not input_shards:
        raise ValueError(f"`input_shards` must be a list of tensors, one a shard, but is {input_shards!r}")
    shards = [tf.convert_to_tensor(shard) for shard in input_shards]
    if len({id(shard) for shard in input_shards}) != len(shards):
        raise ValueError("`input_shards` lists a tensor twice, and each shard has its own: pass a `tf.identity` of it")
    if len({shard.dtype for shard in shards}) != 1:
        raise ValueError(
            "the tensors of `input_shards` must all have the same type, but have"
            f" {', '.join(shard.dtype.name for shard in shards)}"
        )
    if any(shard.shape.rank is None for shard in shards) or len({shard.shape.rank for shard in shards}) != 1:
        raise ValueError(
            "the tensors of `input_shards` must all have the same rank, but have shapes"
            f" {', '.join(str(shard.shape) for shard in shards)}"
        )
    _check_order(input_shards)
    return shards


def _check_order(input_shards: Sequence[TensorLike]) -> None:
    """Raises an error if a tensor was created on another shard; in a graph, the run raises it, as in the SDK."""
    for place, shard in enumerate(input_shards):
        # Only symbolic tensors from an `ipu_shard` scope have the attribute.
        attributes = shard.op.node_def.attr if isinstance(shard, tf.Tensor) and hasattr(shard, "graph") else {}
        shards = list(attributes[SHARD_ATTRIBUTE].list.i) if SHARD_ATTRIBUTE in attributes else []
        if shards and place not in shards and shards != [ALL_IPUS]:
            message_start = f"`input_shards[{place}]` was made on shard "
            message_end = f": the tensors are listed in the order of the shards, that of shard {place} at {place}"
            if not programs.is_tracing() or tf.compat.v1.executing_eagerly_outside_functions():
                raise tf.errors.FailedPreconditionError(None, None, f"{message_start}{shards[0]}{message_end}")
            count = tf.constant(shards[0], tf.int64)
            ops.ipu_micro_batches(
                count, multiple=1, least=place, largest=place, before=message_start, after=message_end
            )


def _reduced(input_shards: Sequence[TensorLike], op: str) -> list[tf.Tensor]:
    """Returns each shard's result of `op`, a vector as long as the longest input."""
    shards = _shards(input_shards)
    if shards[0].shape.rank > 1:
        raise ValueError(
            f"the tensors of `input_shards` must have rank 0 or 1, but have rank {shards[0].shape.rank}. `tf.reshape`"
            " them"
        )
    vectors = [tf.reshape(shard, [-1]) for shard in shards]
    longest = max(map(_length, vectors))
    vectors = [_padded(vector, longest) for vector in vectors]
    _collectives.check_types("op", vectors, _collectives.reduction_of(op, (*_OPERATIONS, _LOCAL)))
    return vectors if op == _LOCAL else [functools.reduce(_OPERATIONS[op], vectors)] * len(vectors)


def _length(vector: tf.Tensor) -> int:
    length = vector.shape[0]
    if length is None:
        raise ValueError(
            f"a tensor of `input_shards` has shape {vector.shape}; the length must be known when the program is traced:"
            " use `tf.ensure_shape`"
        )
    return length


def _padded(vector: tf.Tensor, length: int) -> tf.Tensor:
    missing = length - _length(vector)
    return tf.pad(vector, [[0, missing]]) if missing else vector
