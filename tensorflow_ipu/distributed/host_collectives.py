"""Reduces, gathers and broadcasts tensors of the host over all instances."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Collection, Iterator
from contextvars import ContextVar

import tensorflow as tf

from tensorflow_ipu import hosts, programs
from tensorflow_ipu._base.checks import as_int
from tensorflow_ipu._base.types import TensorLike
from tensorflow_ipu.hosts import Identity, exchange

_block: ContextVar[tuple[int, ...] | None] = ContextVar("participants", default=None)


def own_identity(cluster: hosts.Cluster | None = None) -> Identity:
    """Returns which instance this is: in a cluster, or by default in the joined one, or as the launcher says."""
    cluster = cluster or hosts.joined()
    return hosts.identity() or Identity(0, 1, 0, 1) if cluster is None else _identity_in(cluster)


@functools.cache
def _identity_in(cluster: hosts.Cluster) -> Identity:
    here, worker = cluster.hosts[cluster.worker], cluster.worker
    return Identity(worker, cluster.workers, cluster.hosts[:worker].count(here), cluster.hosts.count(here))


def participants() -> tuple[int, ...]:
    """Returns the instances that take part now, in order."""
    return _block.get() or tuple(range(own_identity().workers))


def checked(chosen: Collection[int], name: str) -> tuple[int, ...]:
    """Returns a selection of the instances that take part, in order."""
    numbers = None if isinstance(chosen, str) or not isinstance(chosen, Collection) else set(map(as_int, chosen))
    if numbers is None or None in numbers:
        raise TypeError(f"`{name}` must be a set of numbers of instances, but is {chosen!r}")
    known = participants()
    if not numbers or not numbers <= set(known):
        there = ", ".join(map(str, known))
        raise ValueError(f"`{name}` is {chosen!r}, and must be one or more of the instances that take part: {there}")
    return tuple(number for number in known if number in numbers)


@contextlib.contextmanager
def among(chosen: tuple[int, ...]) -> Iterator[None]:
    """Limits exchanges to these instances for a block."""
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
      reduce_op: `tf.distribute.ReduceOp.SUM` or `MEAN`. A mean of integers is truncated. Numbers of 16 bits are added in
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
    tensor, key = _prepared("AllReduce", value, tensor_name)
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_complex):
        raise TypeError(f"`value` must hold numbers, and is of type {tensor.dtype.name}")
    return _exchanged(name.lower(), tensor, key)


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
    tensor, key = _prepared("AllGather", value, tensor_name)
    return _exchanged("gather", tensor[tf.newaxis], key)


def broadcast(value: TensorLike, root_rank: int = 0, tensor_name: str | None = None) -> tf.Tensor:
    """Returns the value of one instance on all of them; called as `allreduce` is, with its errors.

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
    return _exchanged("broadcast", *_prepared("Broadcast", value, tensor_name), root)


def gather_rows(value: TensorLike, tensor_name: str | None = None) -> tf.Tensor:
    """Concatenates the tensors of all instances along the first axis, which may differ in length; see `allgather`."""
    tensor, key = _prepared("AllGather", value, tensor_name)
    return _exchanged("rows", tensor[tf.newaxis] if tensor.shape.rank == 0 else tensor, key)


def _prepared(function: str, value: TensorLike, tensor_name: str | None) -> tuple[tf.Tensor, str]:
    """Returns a tensor and the name by which the instances know it."""
    if programs.is_tracing():
        raise RuntimeError(
            f"`{function.lower()}` is for tensors of the host, and is called in a program: take it out of the function that"
            " `strategy.run` is given. In programs, `ops.cross_replica_ops` and `ops.all_to_all_op` serve all replicas of all"
            " instances"
        )
    tensor = tf.convert_to_tensor(value)
    if tensor_name is None:
        is_eager = tf.executing_eagerly()
        tensor_name = "Default" if is_eager else f"PopDist{function}_{re.sub('[^a-zA-Z0-9_]', '_', tensor.name)}"
    return tensor, tensor_name


def _exchanged(kind: str, tensor: tf.Tensor, name: str, root: int = 0) -> tf.Tensor:
    members = participants()
    if len(members) == 1:
        return tensor
    return exchange.collective(hosts.join(), kind, tensor, name, root=root, members=members, name=name)
