"""`allreduce`, `allgather`, `broadcast`: tensors of the host, over all instances."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf

from tensorflow_ipu import hosts, replicas
from tensorflow_ipu._base.checks import as_int
from tensorflow_ipu.hosts import Cluster, exchange

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import TensorLike

# The group of all instances in TensorFlow's collectives; smaller ones have keys far from it.
_ALL = 8300
_SMALLER = 0x20000000
_SPAN = 0x0FFFFFFF

_block: ContextVar[tuple[int, ...] | None] = ContextVar("participants", default=None)


def instances() -> tuple[int, int]:
    """The number of this instance, from 0, and how many there are; without joining them."""
    cluster = hosts.joined()
    if cluster is not None:
        return cluster.worker, cluster.workers
    identity = hosts.identity()
    return (0, 1) if identity is None else (identity.worker, identity.workers)


def current() -> tuple[int, ...]:
    """Those that take part now, in order."""
    within = _block.get()
    return tuple(range(instances()[1])) if within is None else within


def group_key() -> int:
    """The number by which TensorFlow's collectives know them: the same on all of them."""
    within = _block.get()
    if within is None or len(within) == instances()[1]:
        return _ALL
    return _SMALLER + (zlib.crc32(repr(within).encode()) & _SPAN)


def checked(chosen: Collection[int], name: str) -> tuple[int, ...]:
    """A choice of instances, in order."""
    if isinstance(chosen, str) or not isinstance(chosen, Collection):
        raise TypeError(f"`{name}` must be a set of numbers of instances, but is {chosen!r}")
    numbers = [as_int(one) for one in chosen]
    if None in numbers:
        raise TypeError(f"`{name}` must be a set of numbers of instances, but is {chosen!r}")
    known = current()
    if not numbers or not set(numbers) <= set(known):
        there = ", ".join(map(str, known))
        raise ValueError(f"`{name}` is {chosen!r}, and must be one or more of the instances that take part: {there}")
    return tuple(sorted({number for number in numbers if number is not None}))


@contextlib.contextmanager
def among(chosen: tuple[int, ...]) -> Iterator[None]:
    """A block in which these alone exchange."""
    token = _block.set(chosen)
    try:
        yield
    finally:
        _block.reset(token)


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

    keys: exchange.CollectiveKeys
    rows: np.ndarray | tf.Tensor


def agree(
    cluster: Cluster, kind: str, tensor: tf.Tensor, option: int, name: str, in_order: bool, rows_differ: bool = False
) -> Agreed:
    """Compares what instances give to an exchange."""
    if tensor.shape.rank is None or tensor.shape.rank > _MOST_AXES:
        raise ValueError(f"`{kind}` takes tensors of up to {_MOST_AXES} axes, and {name} has the shape {tensor.shape}")
    meeting = exchange.CollectiveKeys(group_key(), _number("agree" if in_order else f"agree {name}"), len(current()))
    mask = np.ones(_LENGTH, np.int64)
    if rows_differ:
        mask[_HEAD] = 0
    what = f"`{kind}` of {name}"
    base = _number(name)
    if tf.executing_eagerly():
        own = np.array(
            _head(kind, tensor, option, name) + _axes([int(length or 0) for length in tensor.shape.as_list()]), np.int64
        )
        table = exchange.gather_at(cluster, meeting, tf.constant(own[np.newaxis]), what).numpy()
        if ((table - table[:1]) * mask).any():
            raise tf.errors.InvalidArgumentError(None, None, _difference(what, table))
        key = (
            base + sum(int(x) % _PRIME * w % _PRIME for x, w in zip(table.max(axis=0), _WEIGHTS, strict=True))
        ) % _PRIME
        return Agreed(dataclasses.replace(meeting, instance_key=key), table[:, _HEAD])
    shape = tf.pad(tf.shape(tensor, tf.int64), [[0, _MOST_AXES - tensor.shape.rank]])
    own = tf.concat([tf.constant(_head(kind, tensor, option, name), tf.int64), shape], 0)
    table = exchange.gather_at(cluster, meeting, own[tf.newaxis], what)
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
    for instance, row in zip(current(), table.tolist(), strict=True):
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


_DEFAULT_NAME = "Default"
# Of each graph, how often each name was given in it.
_names: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()


def allreduce(value: TensorLike, reduce_op: tf.distribute.ReduceOp | str, tensor_name: str | None = None) -> tf.Tensor:
    """Reduces a tensor over all instances.

    All instances call it in the same order, in graphs too; in a session of TensorFlow 1, which keeps none, names tell
    tensors apart. The instances compare what they give first, so that a difference is an error. With one instance it gives the
    value back. It is for tensors of the host: in a program for an IPU, `ops.cross_replica_ops.cross_replica_sum` reduces over
    all replicas of all instances.

    Args:
      value: A tensor of numbers, of the same type and shape on all instances.
      reduce_op: `tf.distribute.ReduceOp.SUM` or `MEAN`. A mean of integers is cut to one. Numbers of 16 bits are added in
        float32.
      tensor_name: By what the instances know this tensor from others. None: in a graph, by the name of `value`.

    Returns:
      A tensor of the same type and shape, equal on all instances.

    Raises:
      ValueError: There is no such reduction.
      TypeError: The tensor holds no numbers.
      RuntimeError: It is called in a program.
      tf.errors.InvalidArgumentError: Another instance gives something else, which the error says.
      tf.errors.OpError: An instance is lost, or did not call in time.
      ClusterError: The instances cannot be joined; or they were not yet, and TensorFlow's runtime had started.
    """
    mean = _is_mean(reduce_op)
    tensor = _tensor("allreduce", value)
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_complex):
        raise TypeError(f"`value` must hold numbers, and is of type {tensor.dtype.name}")

    def exchanged(cluster: Cluster, given: tf.Tensor, name: str, in_order: bool) -> tf.Tensor:
        agreed = agree(cluster, "allreduce", given, int(mean), name, in_order)
        return exchange.reduce_at(cluster, agreed.keys, given, mean, f"`allreduce` of {name}")

    return _over_instances("AllReduce", tensor, tensor_name, exchanged, tensor.shape) if _several() else tensor


def allgather(value: TensorLike, tensor_name: str | None = None) -> tf.Tensor:
    """Stacks what all instances have, along a new first axis.

    Called as `allreduce` is.

    Args:
      value: A tensor of the same type and shape on all instances; not of text.
      tensor_name: By what the instances know this tensor from others. None: in a graph, by the name of `value`.

    Returns:
      A tensor of the same type with one more axis, the first: that of the instances, in order.

    Raises:
      TypeError: The tensor holds text.
      RuntimeError: It is called in a program.
      tf.errors.InvalidArgumentError: Another instance gives something else, which the error says.
      tf.errors.OpError: An instance is lost, or did not call in time.
      ClusterError: The instances cannot be joined; or they were not yet, and TensorFlow's runtime had started.
    """
    tensor = _tensor("allgather", value)
    if not _several():
        return tensor[tf.newaxis]

    def exchanged(cluster: Cluster, given: tf.Tensor, name: str, in_order: bool) -> tf.Tensor:
        agreed = agree(cluster, "allgather", given, 0, name, in_order)
        return exchange.gather_at(cluster, agreed.keys, given[tf.newaxis], f"`allgather` of {name}")

    shape = tf.TensorShape([len(current())]).concatenate(tensor.shape)
    return _over_instances("AllGather", tensor, tensor_name, exchanged, shape)


def broadcast(value: TensorLike, root_rank: int = 0, tensor_name: str | None = None) -> tf.Tensor:
    """Gives all instances the value of one of them.

    Called as `allreduce` is.

    Args:
      value: A tensor of the same type and shape on all instances; not of text.
      root_rank: The instance whose value it is.
      tensor_name: By what the instances know this tensor from others. None: in a graph, by the name of `value`.

    Returns:
      A tensor of the same type and shape.

    Raises:
      ValueError: There is no such instance.
      TypeError: The tensor holds text, or `root_rank` is no number.
      RuntimeError: It is called in a program.
      tf.errors.InvalidArgumentError: Another instance gives something else, which the error says.
      tf.errors.OpError: An instance is lost, or did not call in time.
      ClusterError: The instances cannot be joined; or they were not yet, and TensorFlow's runtime had started.
    """
    number = as_int(root_rank)
    if number is None:
        raise TypeError(f"`root_rank` must be the number of an instance, but is {root_rank!r}")
    (root,) = checked([number], "root_rank")
    tensor = _tensor("broadcast", value)

    def exchanged(cluster: Cluster, given: tf.Tensor, name: str, in_order: bool) -> tf.Tensor:
        agreed = agree(cluster, "broadcast", given, root, name, in_order)
        return exchange.broadcast_at(cluster, agreed.keys, given, root, f"`broadcast` of {name}")

    return _over_instances("Broadcast", tensor, tensor_name, exchanged, tensor.shape) if _several() else tensor


def gather_rows(value: TensorLike, tensor_name: str | None = None) -> tf.Tensor:
    """Puts what all instances have one behind the other along the first axis, which may differ in length.

    Otherwise as `allgather`, and with the same errors.
    """
    tensor = _tensor("allgather", value)
    if tensor.shape.rank == 0:
        tensor = tensor[tf.newaxis]
    if not _several():
        return tensor

    def exchanged(cluster: Cluster, given: tf.Tensor, name: str, in_order: bool) -> tf.Tensor:
        agreed = agree(cluster, "allgather", given, 1, name, in_order, rows_differ=True)
        most = tf.reduce_max(agreed.rows)
        missing = tf.cast(most - tf.shape(given, tf.int64)[0], tf.int32)
        ends: Any = [[0, missing], *[[0, 0]] * (given.shape.rank - 1)]
        padded = tf.pad(given, ends)
        together = exchange.gather_at(cluster, agreed.keys, padded[tf.newaxis], f"`allgather` of {name}")
        return tf.concat([together[i, : agreed.rows[i]] for i in range(len(current()))], 0)

    shape = tf.TensorShape([None]).concatenate(tensor.shape[1:])
    return _over_instances("AllGather", tensor, tensor_name, exchanged, shape)


def _several() -> bool:
    return len(current()) > 1


def _is_mean(reduce_op: object) -> bool:
    name = getattr(reduce_op, "value", reduce_op)
    if not isinstance(name, str) or name.upper() not in ("SUM", "MEAN"):
        raise ValueError(f"`reduce_op` must be `tf.distribute.ReduceOp.SUM` or `MEAN`, but is {reduce_op!r}")
    return name.upper() == "MEAN"


def _tensor(function: str, value: TensorLike) -> tf.Tensor:
    if replicas.is_tracing():
        raise RuntimeError(
            f"`{function}` is for tensors of the host, and is called in a program: take it out of the function that"
            " `strategy.run` is given. In programs, `ops.cross_replica_ops` and `ops.all_to_all_op` serve all replicas of all"
            " instances"
        )
    if _several() and hosts.joined() is None:
        hosts.join()  # Before there is a tensor, which starts TensorFlow's runtime.
    return tf.convert_to_tensor(value)


def _over_instances(
    kind: str,
    tensor: tf.Tensor,
    tensor_name: str | None,
    exchanged: Callable[[Cluster, tf.Tensor, str, bool], tf.Tensor],
    shape: tf.TensorShape,
) -> tf.Tensor:
    """Exchanges a tensor, now or when the graph runs."""
    cluster = hosts.join()
    if tf.executing_eagerly():
        return exchanged(cluster, tensor, tensor_name or _DEFAULT_NAME, True)
    graph = tf.compat.v1.get_default_graph()
    if tensor_name is None:
        tensor_name = f"PopDist{kind}_{re.sub('[^a-zA-Z0-9_]', '_', tensor.name)}"
    given = _names.setdefault(graph, Counter())
    given[tensor_name] += 1
    name = tensor_name if given[tensor_name] == 1 else f"{tensor_name}_{given[tensor_name]}"
    if graph.building_function:
        return exchanged(cluster, tensor, name, True)
    # A session of TensorFlow 1 has no part in the cluster, and this process has. It keeps no order.
    done = tf.py_function(lambda given: exchanged(cluster, given, name, False), [tensor], tensor.dtype)
    done.set_shape(shape)
    return done
