"""Reduces, gathers and broadcasts host tensors over all instances. An instance is a worker."""

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

_participants: ContextVar[tuple[int, ...] | None] = ContextVar("participants", default=None)


def own_identity(cluster: hosts.Cluster | None = None) -> Identity:
    """Returns this instance's identity in `cluster`, else in the joined cluster, else by the launcher's variables."""
    cluster = cluster or hosts.joined()
    return hosts.identity() or Identity(0, 1, 0, 1) if cluster is None else _identity_in(cluster)


@functools.cache
def _identity_in(cluster: hosts.Cluster) -> Identity:
    host, worker = cluster.hosts[cluster.worker], cluster.worker
    return Identity(worker, cluster.workers, cluster.hosts[:worker].count(host), cluster.hosts.count(host))


def participants() -> tuple[int, ...]:
    """Returns the indices of the instances that take part in collectives at present, in order."""
    return _participants.get() or tuple(range(own_identity().workers))


def checked(chosen: Collection[int], name: str) -> tuple[int, ...]:
    """Returns the chosen instances in order; raises an error unless all of them are participants."""
    numbers = None if isinstance(chosen, str) or not isinstance(chosen, Collection) else set(map(as_int, chosen))
    if numbers is None or None in numbers:
        raise TypeError(f"`{name}` must be a set of numbers of instances, but is {chosen!r}")
    available = participants()
    if not numbers or not numbers <= set(available):
        listed = ", ".join(map(str, available))
        raise ValueError(f"`{name}` must be one or more of the participating instances {listed}, but is {chosen!r}")
    return tuple(number for number in available if number in numbers)


@contextlib.contextmanager
def among(chosen: tuple[int, ...]) -> Iterator[None]:
    """Runs the block with only the chosen instances taking part in collectives."""
    token = _participants.set(chosen)
    try:
        yield
    finally:
        _participants.reset(token)


def allreduce(value: TensorLike, reduce_op: tf.distribute.ReduceOp | str, tensor_name: str | None = None) -> tf.Tensor:
    """Reduces a host tensor over all instances.

    All instances have to call the function in the same order, also when they build graphs. In a session of TensorFlow
    1, the names match the tensors of different instances. In a program, use `ops.cross_replica_ops.cross_replica_sum`,
    which reduces over all replicas of all instances.

    Args:
      value: A numeric tensor, of the same type and shape on all instances.
      reduce_op: `tf.distribute.ReduceOp.SUM` or `MEAN`. A mean of integers is truncated. Floating-point values of 16
        bits are summed in float32.
      tensor_name: The name of this tensor on all instances. None: in a graph, the name of `value`.

    Returns:
      A tensor of the same type and shape, equal on all instances. With one instance, it is the value.

    Raises:
      ValueError: `reduce_op` is unsupported.
      TypeError: The tensor is not numeric.
      RuntimeError: The function is called in a program.
      tf.errors.InvalidArgumentError: Another instance passes another type, shape or reduction.
      tf.errors.OpError: An instance ended, or did not call the function in time.
      ClusterError: The instances cannot join.
    """
    name = getattr(reduce_op, "value", reduce_op)
    if not isinstance(name, str) or name.upper() not in ("SUM", "MEAN"):
        raise ValueError(f"`reduce_op` must be `tf.distribute.ReduceOp.SUM` or `MEAN`, but is {reduce_op!r}")
    tensor, key = _prepared("AllReduce", value, tensor_name)
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_complex):
        raise TypeError(f"`value` must hold numbers, but is of type {tensor.dtype.name}")
    return _collective(name.lower(), tensor, key)


def allgather(value: TensorLike, tensor_name: str | None = None) -> tf.Tensor:
    """Stacks the tensors of all instances along a new first axis.

    The order of calls and the errors are those of `allreduce`.

    Args:
      value: A tensor of the same type and shape on all instances. Strings are unsupported.
      tensor_name: As for `allreduce`.

    Returns:
      A tensor of the same type, of shape [instances] + the shape of `value`.

    Raises:
      TypeError: The tensor holds strings.
    """
    tensor, key = _prepared("AllGather", value, tensor_name)
    return _collective("gather", tensor[tf.newaxis], key)


def broadcast(value: TensorLike, root_rank: int = 0, tensor_name: str | None = None) -> tf.Tensor:
    """Returns the value of one instance on all instances.

    The order of calls and the errors are those of `allreduce`.

    Args:
      value: A tensor of the same type and shape on all instances. Strings are unsupported.
      root_rank: The instance whose value is returned.
      tensor_name: As for `allreduce`.

    Returns:
      A tensor of the same type and shape.

    Raises:
      ValueError: There is no such instance.
      TypeError: The tensor holds strings, or `root_rank` is not an integer.
    """
    number = as_int(root_rank)
    if number is None:
        raise TypeError(f"`root_rank` must be the number of an instance, but is {root_rank!r}")
    (root,) = checked([number], "root_rank")
    return _collective("broadcast", *_prepared("Broadcast", value, tensor_name), root)


def gather_rows(value: TensorLike, tensor_name: str | None = None) -> tf.Tensor:
    """Concatenates the tensors of all instances along the first axis, whose length may differ; see `allgather`."""
    tensor, key = _prepared("AllGather", value, tensor_name)
    return _collective("rows", tensor[tf.newaxis] if tensor.shape.rank == 0 else tensor, key)


def _prepared(function: str, value: TensorLike, tensor_name: str | None) -> tuple[tf.Tensor, str]:
    """Returns the value as a tensor, and its name on all instances; raises `RuntimeError` in a program."""
    if programs.is_tracing():
        raise RuntimeError(
            f"`{function.lower()}` is for tensors of the host, and is called in a program: move it out of the function"
            " that `strategy.run` runs. In programs, use `ops.cross_replica_ops` and `ops.all_to_all_op`, which work on"
            " all replicas of all instances"
        )
    tensor = tf.convert_to_tensor(value)
    if tensor_name is None:
        is_eager = tf.executing_eagerly()
        tensor_name = "Default" if is_eager else f"PopDist{function}_{re.sub('[^a-zA-Z0-9_]', '_', tensor.name)}"
    return tensor, tensor_name


def _collective(kind: str, tensor: tf.Tensor, name: str, root: int = 0) -> tf.Tensor:
    members = participants()
    if len(members) == 1:
        return tensor
    return exchange.collective(hosts.join(), kind, tensor, name, root=root, members=members, name=name)
