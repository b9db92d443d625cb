"""`allreduce`, `allgather`, `broadcast`: tensors of the host, over all instances."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from tensorflow_ipu import hosts, replicas
from tensorflow_ipu._checks import as_int
from tensorflow_ipu.distributed import participants
from tensorflow_ipu.distributed.agreement import agree
from tensorflow_ipu.hosts import World, meetings

if TYPE_CHECKING:
    from tensorflow_ipu._types import TensorLike

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

    def exchanged(world: World, given: tf.Tensor, name: str, in_order: bool) -> tf.Tensor:
        agreed = agree(world, "allreduce", given, int(mean), name, in_order)
        return meetings.reduce_at(world, agreed.keys, given, mean, f"`allreduce` of {name}")

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

    def exchanged(world: World, given: tf.Tensor, name: str, in_order: bool) -> tf.Tensor:
        agreed = agree(world, "allgather", given, 0, name, in_order)
        return meetings.gather_at(world, agreed.keys, given[tf.newaxis], f"`allgather` of {name}")

    shape = tf.TensorShape([len(participants.current())]).concatenate(tensor.shape)
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
    (root,) = participants.checked([number], "root_rank")
    tensor = _tensor("broadcast", value)

    def exchanged(world: World, given: tf.Tensor, name: str, in_order: bool) -> tf.Tensor:
        agreed = agree(world, "broadcast", given, root, name, in_order)
        return meetings.broadcast_at(world, agreed.keys, given, root, f"`broadcast` of {name}")

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

    def exchanged(world: World, given: tf.Tensor, name: str, in_order: bool) -> tf.Tensor:
        agreed = agree(world, "allgather", given, 1, name, in_order, rows_differ=True)
        most = tf.reduce_max(agreed.rows)
        missing = tf.cast(most - tf.shape(given, tf.int64)[0], tf.int32)
        ends: Any = [[0, missing], *[[0, 0]] * (given.shape.rank - 1)]
        padded = tf.pad(given, ends)
        together = meetings.gather_at(world, agreed.keys, padded[tf.newaxis], f"`allgather` of {name}")
        return tf.concat([together[i, : agreed.rows[i]] for i in range(len(participants.current()))], 0)

    shape = tf.TensorShape([None]).concatenate(tensor.shape[1:])
    return _over_instances("AllGather", tensor, tensor_name, exchanged, shape)


def _several() -> bool:
    return len(participants.current()) > 1


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
    if _several() and hosts.world() is None:
        hosts.join()  # Before there is a tensor, which starts TensorFlow's runtime.
    return tf.convert_to_tensor(value)


def _over_instances(
    kind: str,
    tensor: tf.Tensor,
    tensor_name: str | None,
    exchanged: Callable[[World, tf.Tensor, str, bool], tf.Tensor],
    shape: tf.TensorShape,
) -> tf.Tensor:
    """Exchanges a tensor, now or when the graph runs."""
    world = hosts.join()
    if tf.executing_eagerly():
        return exchanged(world, tensor, tensor_name or _DEFAULT_NAME, True)
    graph = tf.compat.v1.get_default_graph()
    if tensor_name is None:
        tensor_name = f"PopDist{kind}_{re.sub('[^a-zA-Z0-9_]', '_', tensor.name)}"
    given = _names.setdefault(graph, Counter())
    given[tensor_name] += 1
    name = tensor_name if given[tensor_name] == 1 else f"{tensor_name}_{given[tensor_name]}"
    if graph.building_function:
        return exchanged(world, tensor, name, True)
    # A session of TensorFlow 1 has no part in the cluster, and this process has. It keeps no order.
    done = tf.py_function(lambda given: exchanged(world, given, name, False), [tensor], tensor.dtype)
    done.set_shape(shape)
    return done
