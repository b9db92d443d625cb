"""Before tensors are exchanged, the instances compare what they give: a difference is an error, and no endless wait."""

from __future__ import annotations

import dataclasses
import zlib

import numpy as np
import tensorflow as tf

from tensorflow_ipu.distributed import participants
from tensorflow_ipu.hosts import World, meetings

# A description: kind, type, option, name, rank, and the axes.
_KINDS = ("allreduce", "allgather", "broadcast")
_HEAD = 5
_MOST_AXES = 8
_LENGTH = _HEAD + _MOST_AXES
# Numbers of collectives are below this prime, and a description's is its sum weighted by these.
_PRIME = 2**31 - 1
_WEIGHTS = tuple(pow(48271, power, _PRIME) for power in range(1, _LENGTH + 1))


@dataclasses.dataclass(frozen=True)
class Agreed:
    """What the instances have agreed on.

    Attributes:
      keys: The keys of the exchange.
      rows: How long the first axis is on each of them, in order: integers, or a tensor of them in a graph.
    """

    keys: meetings.CollectiveKeys
    rows: np.ndarray | tf.Tensor


def agree(
    world: World, kind: str, tensor: tf.Tensor, option: int, name: str, in_order: bool, rows_differ: bool = False
) -> Agreed:
    """Compares what instances give to an exchange.

    Args:
      world: The workers.
      kind: What they are to do: `allreduce`, `allgather` or `broadcast`.
      tensor: What this one gives.
      option: A number that all have to give.
      name: By what the instances know this exchange from others.
      in_order: Whether all instances exchange in one order; else several exchanges may be under way.
      rows_differ: Whether the first axis may be of another length on each.

    Returns:
      Where they meet, and the lengths of their first axes.

    Raises:
      tf.errors.InvalidArgumentError: They give different things. In a graph, when it runs.
      tf.errors.OpError: An instance is lost, or did not call in time.
      ValueError: The tensor has too many axes.
    """
    if tensor.shape.rank is None or tensor.shape.rank > _MOST_AXES:
        raise ValueError(f"`{kind}` takes tensors of up to {_MOST_AXES} axes, and {name} has the shape {tensor.shape}")
    meeting = meetings.CollectiveKeys(
        participants.group_key(), _number("agree" if in_order else f"agree {name}"), len(participants.current())
    )
    mask = np.ones(_LENGTH, np.int64)
    if rows_differ:
        mask[_HEAD] = 0
    what = f"`{kind}` of {name}"
    base = _number(name)
    if tf.executing_eagerly():
        own = np.array(
            _head(kind, tensor, option, name) + _axes([int(length or 0) for length in tensor.shape.as_list()]), np.int64
        )
        table = meetings.gather_at(world, meeting, tf.constant(own[np.newaxis]), what).numpy()
        if ((table - table[:1]) * mask).any():
            raise tf.errors.InvalidArgumentError(None, None, _difference(what, table))
        key = (
            base + sum(int(x) % _PRIME * w % _PRIME for x, w in zip(table.max(axis=0), _WEIGHTS, strict=True))
        ) % _PRIME
        return Agreed(dataclasses.replace(meeting, instance_key=key), table[:, _HEAD])
    shape = tf.pad(tf.shape(tensor, tf.int64), [[0, _MOST_AXES - tensor.shape.rank]])
    own = tf.concat([tf.constant(_head(kind, tensor, option, name), tf.int64), shape], 0)
    table = meetings.gather_at(world, meeting, own[tf.newaxis], what)
    same = tf.reduce_all(tf.equal((table - table[:1]) * mask, 0))
    said = f"{what}: the instances give different things. Of each: kind, type, option, name, axes, their lengths"
    check = tf.debugging.Assert(same, [said, table], summarize=meeting.group_size * _LENGTH)
    with tf.control_dependencies([check]):
        top = tf.math.floormod(tf.reduce_max(table, 0), _PRIME) * tf.constant(_WEIGHTS, tf.int64)
        number = tf.math.floormod(base + tf.reduce_sum(tf.math.floormod(top, _PRIME)), _PRIME)
    return Agreed(dataclasses.replace(meeting, instance_key=tf.cast(number, tf.int32)), table[:, _HEAD])


def _number(text: str) -> int:
    return zlib.crc32(text.encode()) % _PRIME


def _head(kind: str, tensor: tf.Tensor, option: int, name: str) -> list[int]:
    return [_KINDS.index(kind), tensor.dtype.as_datatype_enum, option, _number(name), tensor.shape.rank]


def _axes(lengths: list[int]) -> list[int]:
    return [*lengths, *[0] * (_MOST_AXES - len(lengths))]


def _difference(what: str, table: np.ndarray) -> str:
    """Who gives what, where that differs."""
    given: dict[str, list[int]] = {}
    for instance, row in zip(participants.current(), table.tolist(), strict=True):
        kind, dtype, option, name, rank, *axes = row
        text = f"{_KINDS[kind]}({tf.as_dtype(dtype).name} {axes[:rank]}{f', {option}' if option else ''})"
        given.setdefault(text if name == table[0, 3] else f"{text} of another name", []).append(instance)
    said = "; ".join(
        f"{text} on instance{'s' if len(who) > 1 else ''} {', '.join(map(str, who))}" for text, who in given.items()
    )
    return (
        f"{what}: the instances call different things: {said}. All have to give tensors of the same types and shapes, in the"
        " same order"
    )
