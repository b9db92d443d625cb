"""Reduces, gathers and broadcasts tensors of the host over all instances."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from tensorflow_ipu import hosts, replicas
from tensorflow_ipu._base.checks import as_int
from tensorflow_ipu._base.types import TensorLike
from tensorflow_ipu.hosts import exchange

_block: ContextVar[tuple[int, ...] | None] = ContextVar("participants", default=None)


def instances() -> tuple[int, int]:
    """The number of this instance, from 0, and how many there are, without joining them."""
    cluster = hosts.joined()
    if cluster is not None:
        return cluster.worker, cluster.workers
    identity = hosts.identity()
    return (0, 1) if identity is None else (identity.worker, identity.workers)


def current() -> tuple[int, ...]:
    """The instances that take part now, in order."""
    within = _block.get()
    return tuple(range(instances()[1])) if within is None else within


def checked(chosen: Collection[int], name: str) -> tuple[int, ...]:
    """A selection of instances, in order."""
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
    """A block in which these instances alone exchange."""
    token = _block.set(chosen)
    try:
        yield
    finally:
        _block.reset(token)


def allreduce(value: TensorLike, reduce_op: tf.distribute.ReduceOp | str, tensor_name: str | None = None) -> tf.Tensor:
    """Reduces a tensor of the host over all instances; one instance gets its value back.

    All instances call it in the same order, in graphs too; in a session of TensorFlow 1, names tell tensors apart. In a
    program, `ops.cross_replica_ops.cross_replica_sum` reduces over all replicas of all instances.

    Args:
      value: A tensor of numbers, of the same type and shape on all instances.
      reduce_op: `tf.distribute.ReduceOp.SUM` or `MEAN`. A mean of integers is cut to one. Numbers of 16 bits are added in
        float32.
      tensor_name: The name by which the instances know this tensor. None: in a graph, the name of `value`.

    Returns:
      A tensor of the same type and shape, equal on all instances.

    Raises:
      ValueError: There is no such reduction.
      TypeError: The tensor holds no numbers.
      RuntimeError: It is called in a program.
      tf.errors.InvalidArgumentError: Another instance passes something else, which the error says.
      tf.errors.OpError: An instance is lost, or did not call in time.
      ClusterError: The instances cannot be joined.
    """
    name = getattr(reduce_op, "value", reduce_op)
    if not isinstance(name, str) or name.upper() not in ("SUM", "MEAN"):
        raise ValueError(f"`reduce_op` must be `tf.distribute.ReduceOp.SUM` or `MEAN`, but is {reduce_op!r}")
    tensor = _tensor("allreduce", value)
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_complex):
        raise TypeError(f"`value` must hold numbers, and is of type {tensor.dtype.name}")
    if not _several():
        return tensor
    return exchange.all_reduce(hosts.join(), tensor, name.upper() == "MEAN", **_named("AllReduce", tensor, tensor_name))


def allgather(value: TensorLike, tensor_name: str | None = None) -> tf.Tensor:
    """Stacks the tensors of all instances along a new first axis; called as `allreduce` is, with its errors.

    Args:
      value: A tensor of the same type and shape on all instances; not of text.
      tensor_name: As for `allreduce`.

    Returns:
      A tensor of the same type with one more axis, the first: that of the instances, in order.

    Raises:
      TypeError: The tensor holds text.
    """
    tensor = _tensor("allgather", value)
    if not _several():
        return tensor[tf.newaxis]
    return exchange.all_gather(hosts.join(), tensor[tf.newaxis], **_named("AllGather", tensor, tensor_name))


def broadcast(value: TensorLike, root_rank: int = 0, tensor_name: str | None = None) -> tf.Tensor:
    """Gives all instances the value of one of them; called as `allreduce` is, with its errors.

    Args:
      value: A tensor of the same type and shape on all instances; not of text.
      root_rank: The instance whose value it is.
      tensor_name: As for `allreduce`.

    Returns:
      A tensor of the same type and shape.

    Raises:
      ValueError: There is no such instance.
      TypeError: The tensor holds text, or `root_rank` is no number.
    """
    number = as_int(root_rank)
    if number is None:
        raise TypeError(f"`root_rank` must be the number of an instance, but is {root_rank!r}")
    (root,) = checked([number], "root_rank")
    tensor = _tensor("broadcast", value)
    if not _several():
        return tensor
    return exchange.broadcast(hosts.join(), tensor, root=root, **_named("Broadcast", tensor, tensor_name))


def gather_rows(value: TensorLike, tensor_name: str | None = None) -> tf.Tensor:
    """Concatenates the tensors of all instances along the first axis, which may differ in length; see `allgather`."""
    tensor = _tensor("allgather", value)
    if tensor.shape.rank == 0:
        tensor = tensor[tf.newaxis]
    if not _several():
        return tensor
    cluster, named = hosts.join(), _named("AllGather", tensor, tensor_name)
    rows = exchange.all_gather(cluster, tf.shape(tensor, tf.int64)[:1], **named)
    missing = tf.reduce_max(rows) - tf.shape(tensor, tf.int64)[0]
    ends: Any = [[0, missing], *[[0, 0]] * (tensor.shape.rank - 1)]
    together = exchange.all_gather(cluster, tf.pad(tensor, ends)[tf.newaxis], **named)
    return tf.concat([together[i, : rows[i]] for i in range(len(current()))], 0)


def _several() -> bool:
    return len(current()) > 1


def _tensor(function: str, value: TensorLike) -> tf.Tensor:
    if replicas.is_tracing():
        raise RuntimeError(
            f"`{function}` is for tensors of the host, and is called in a program: take it out of the function that"
            " `strategy.run` is given. In programs, `ops.cross_replica_ops` and `ops.all_to_all_op` serve all replicas of all"
            " instances"
        )
    return tf.convert_to_tensor(value)


def _named(kind: str, tensor: tf.Tensor, tensor_name: str | None) -> dict[str, Any]:
    """The arguments by which `exchange` knows the tensor and its members."""
    if tensor_name is None:
        eagerly = tf.executing_eagerly()
        tensor_name = "Default" if eagerly else f"PopDist{kind}_{re.sub('[^a-zA-Z0-9_]', '_', tensor.name)}"
    return {"what": tensor_name, "members": current(), "name": tensor_name}
