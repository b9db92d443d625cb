"""Tensors of the host over all workers: outside of programs, by TensorFlow's own collectives.

All workers call the same functions in the same order, with the same types and shapes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._native.library import native, ops
from tensorflow_ipu._tensorflow import coordination
from tensorflow_ipu._tensorflow.op_errors import plain_message
from tensorflow_ipu.hosts.rendezvous import name_of

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import TensorLike
    from tensorflow_ipu.hosts.cluster import Cluster

_TASK = re.compile(r"/job:worker/replica:0/task:(\d+)")

# What is moved as another type, since TensorFlow's collectives lack its own: by the same bits, or by the same values.
_SAME_BITS = {
    tf.bfloat16: tf.float16,
    tf.complex64: tf.int64,
    tf.uint32: tf.int32,
    tf.uint64: tf.int64,
}
_SAME_VALUES = dict.fromkeys((tf.bool, tf.int8, tf.int16, tf.uint8, tf.uint16), tf.int32)
_MOVED = (tf.float32, tf.float16, tf.float64, tf.int32, tf.int64)
# What sums are computed in, of types that are not added, or lose by it.
_ADDED_AS = {
    **dict.fromkeys((tf.float16, tf.bfloat16), tf.float32),
    **dict.fromkeys((tf.int8, tf.uint8, tf.int16, tf.uint16), tf.int32),
    **dict.fromkeys((tf.uint32, tf.uint64), tf.int64),
}


@dataclasses.dataclass(frozen=True)
class CollectiveKeys:
    """The keys of one of TensorFlow's collectives, by which the workers that take part find each other.

    Its runtime remembers the type and the shape of each for as long as the process lives, so that tensors of others need
    another key.

    Attributes:
      group_key: The number of the group of workers that meet.
      instance_key: The number of the exchange in that group; a scalar tensor of int32 where a graph computes it.
      group_size: How many workers are in the group.
    """

    group_key: int
    instance_key: int | tf.Tensor
    group_size: int


def reduce_at(cluster: Cluster, keys: CollectiveKeys, tensor: tf.Tensor, mean: bool, what: str) -> tf.Tensor:
    """The sum of what the workers have, or their mean."""
    dtype = tensor.dtype
    if dtype.is_complex:
        carried = tf.stack([tf.math.real(tensor), tf.math.imag(tensor)], -1)
    else:
        carried = tf.cast(tensor, _ADDED_AS.get(dtype, dtype))
    with on_host(cluster, keys, what):
        total: Any = _limited(
            cluster,
            keys,
            what,
            carried,
            lambda given: tf.raw_ops.CollectiveReduceV2(
                input=given, ordering_token=[], merge_op="Add", final_op="Id", **_shared(keys)
            ),
        )
        if mean and not dtype.is_integer:
            total /= tf.cast(keys.group_size, total.dtype)
        if dtype.is_complex:
            return tf.complex(total[..., 0], total[..., 1])
        total = tf.cast(total, dtype)
        return tf.truncatediv(total, tf.cast(keys.group_size, dtype)) if mean and dtype.is_integer else total


def gather_at(cluster: Cluster, keys: CollectiveKeys, tensor: tf.Tensor, what: str) -> tf.Tensor:
    """What the workers have, in their order along the first axis."""
    carried = _carried(tensor, what)
    with on_host(cluster, keys, what):
        done = _limited(
            cluster,
            keys,
            what,
            carried,
            lambda given: tf.raw_ops.CollectiveGatherV2(input=given, ordering_token=[], **_shared(keys)),
        )
        length = tensor.shape[0]
        first = None if length is None else length * keys.group_size
        done = tf.ensure_shape(done, tf.TensorShape([first]).concatenate(tensor.shape[1:]))
        return _as_given(done, tensor.dtype)


def broadcast_at(cluster: Cluster, keys: CollectiveKeys, tensor: tf.Tensor, root: int, what: str) -> tf.Tensor:
    """What worker `root` has."""
    carried = _carried(tensor, what)
    shared = _shared(keys)

    def exchanged(given: tf.Tensor) -> tf.Tensor:
        if cluster.worker == root:
            return tf.raw_ops.CollectiveBcastSendV2(input=given, **shared)
        return tf.raw_ops.CollectiveBcastRecvV2(T=given.dtype, shape=tf.shape(given), **shared)

    with on_host(cluster, keys, what):
        done = _limited(cluster, keys, what, carried, exchanged)
        return _as_given(tf.ensure_shape(done, tensor.shape), tensor.dtype)


@contextlib.contextmanager
def on_host(cluster: Cluster, keys: CollectiveKeys, what: str) -> Iterator[None]:
    """A block of an exchange: on the worker's CPU, whose errors say what was exchanged and by whom."""
    announcement = announced(what) if _of_all(cluster, keys) else contextlib.nullcontext()
    try:
        with announcement, tf.device(cluster.device):
            yield
    except tf.errors.OpError as exc:
        message = told(cluster, plain_message(exc.message))
        raise type(exc)(exc.node_def, exc.op, message if what in message else f"{what}: {message}") from exc


def _limited(
    cluster: Cluster, keys: CollectiveKeys, what: str, carried: tf.Tensor, exchanged: Callable[[tf.Tensor], tf.Tensor]
) -> tf.Tensor:
    """What a collective makes of a tensor; it ends with an error after the workers' limit, now or when the graph runs."""
    names = [name_of(cluster, worker) for worker in range(cluster.workers)] if _of_all(cluster, keys) else []
    # Not while another exchange computes the key.
    with tf.control_dependencies([keys.instance_key] if isinstance(keys.instance_key, tf.Tensor) else []):
        given, exchange = ops.ipu_begin_exchange(
            carried, what=what, limit=cluster.timeout, worker=cluster.worker, workers=names
        )
    return ops.ipu_end_exchange(exchanged(given), exchange)


def _of_all(cluster: Cluster, keys: CollectiveKeys) -> bool:
    return keys.group_size == cluster.workers


def told(cluster: Cluster, message: str) -> str:
    """A message of TensorFlow's with the workers in the place of its tasks."""

    def name(found: re.Match[str]) -> str:
        task = int(found[1])
        return f"worker {task} ({cluster.addresses[task]})" if task < cluster.workers else found[0]

    return _TASK.sub(name, message)


def _shared(keys: CollectiveKeys) -> dict[str, Any]:
    return {
        "group_size": keys.group_size,
        "group_key": keys.group_key,
        "instance_key": keys.instance_key,
        "communication_hint": "ring",
        "timeout_seconds": 0.0,  # None: see `IpuBeginExchange`.
    }


def _carried(tensor: tf.Tensor, what: str) -> tf.Tensor:
    dtype = tensor.dtype
    if dtype in _SAME_BITS:
        return tf.bitcast(tensor, _SAME_BITS[dtype])
    carried = tf.cast(tensor, _SAME_VALUES[dtype]) if dtype in _SAME_VALUES else tensor
    if carried.dtype not in _MOVED:
        raise TypeError(
            f"{what} is of type {dtype.name}, which workers cannot exchange: give all of them the same value"
        )
    return carried


def _as_given(carried: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tf.bitcast(carried, dtype) if dtype in _SAME_BITS else tf.cast(carried, dtype)


@contextlib.contextmanager
def announced(what: str) -> Iterator[None]:
    """A block in which all workers exchange something; a worker that waits in a run meanwhile learns of it.

    Exchanges are numbered, alike on all workers. Those in graphs, and on threads other than the main one, have no number,
    since they come in no order that all workers share.
    """
    if not tf.executing_eagerly() or threading.current_thread() is not threading.main_thread():
        yield
        return
    native.ipu_host_exchange_begin(what.encode())
    try:
        yield
    finally:
        native.ipu_host_exchange_end()


# Of the group of all workers in these collectives. Others have other keys.
_GROUP = 8200

# How the text of a verdict begins.
_LATE, _OTHER = "L", "O"
_REST = 2.0  # Seconds that worker 0's word may take beyond the limit: it began to wait at another time.

_numbers = itertools.count(1)
# What was exchanged eagerly: by its kind, type and shape, the number that it goes by from then on.
_known: dict[tuple[object, ...], int] = {}


def broadcast(cluster: Cluster, value: TensorLike, what: str, root: int = 0) -> tf.Tensor:
    """The value that worker `root` has, on all workers."""
    tensor = tf.convert_to_tensor(value)
    kind = f"broadcast from worker {root}"
    words = _words(kind, tensor, what)
    return broadcast_at(cluster, _keys(cluster, kind, tensor, words), tensor, root, words)


def all_reduce(cluster: Cluster, value: TensorLike, mean: bool, what: str) -> tf.Tensor:
    """The sum of what all workers have, or their mean."""
    tensor = tf.convert_to_tensor(value)
    kind = "mean" if mean else "sum"
    words = _words(kind, tensor, what)
    return reduce_at(cluster, _keys(cluster, kind, tensor, words), tensor, mean, words)


def all_gather(cluster: Cluster, value: TensorLike, what: str) -> tf.Tensor:
    """What all workers have, one behind the other along the first axis."""
    tensor = tf.convert_to_tensor(value)
    words = _words("gather", tensor, what)
    return gather_at(cluster, _keys(cluster, "gather", tensor, words), tensor, words)


def _words(kind: str, tensor: tf.Tensor, what: str) -> str:
    shape = "[...]" if tensor.shape.rank is None else tensor.shape.as_list()
    return f"{kind} of {tensor.dtype.name}{shape} ({what})"


def _keys(cluster: Cluster, kind: str, tensor: tf.Tensor, words: str) -> CollectiveKeys:
    return CollectiveKeys(_GROUP, _key(cluster, kind, tensor, words), cluster.workers)


def _key(cluster: Cluster, kind: str, tensor: tf.Tensor, words: str) -> int:
    """The number by which workers know an exchange from others.

    Eagerly, one exchange ends before the next begins, and each kind of them has one number for ever, since TensorFlow
    keeps what it knows of each. In a graph several may be under way, and each has a number of its own.
    """
    if not tf.executing_eagerly():
        return next(_numbers)
    known = (kind, tensor.dtype, tuple(tensor.shape))
    if known not in _known:
        number = next(_numbers)
        _compare(cluster, number, words)
        _known[known] = number
    return _known[known]


def _compare(cluster: Cluster, number: int, words: str) -> None:
    """Has worker 0 compare what all workers are about to exchange: TensorFlow would wait for what does not fit."""
    with announced(words):
        said = _said_by_worker_0(cluster, f"tensorflow_ipu/exchange/{number}", words)
    if said:
        kind = tf.errors.DeadlineExceededError if said[0] == _LATE else tf.errors.InvalidArgumentError
        raise kind(None, None, said[1:])


def _said_by_worker_0(cluster: Cluster, place: str, text: str) -> str:
    """What worker 0 makes of what all workers are about to exchange; empty for nothing wrong."""
    verdict = f"{place}/verdict"
    if cluster.worker == 0:
        found = _verdict(cluster, place, text)
        said = f"{found[0]}{found[1]}" if found else ""
        coordination.set_value(verdict, said)
        return said
    try:
        coordination.set_value(f"{place}/{cluster.worker}", text)
        return coordination.get_value(verdict, cluster.timeout + _REST)
    except tf.errors.DeadlineExceededError:
        return f"{_LATE}{name_of(cluster, 0)} did not come within {cluster.timeout:g} s to exchange {text}"
    except tf.errors.OpError as exc:
        raise tf.errors.UnavailableError(
            exc.node_def,
            exc.op,
            f"{name_of(cluster, 0)} is gone: its process ended, or was killed, or the network to it was cut, before all had"
            f" exchanged {text}. ({exc.message})",
        ) from exc


def _verdict(cluster: Cluster, place: str, own: str) -> tuple[str, str] | None:
    """What is wrong with what the other workers are about to exchange, with the kind of it; None for nothing."""
    end = time.monotonic() + cluster.timeout
    for worker in range(1, cluster.workers):
        try:
            theirs = coordination.get_value(f"{place}/{worker}", max(0.001, end - time.monotonic()))
        except tf.errors.DeadlineExceededError:
            return _LATE, f"{name_of(cluster, worker)} did not come within {cluster.timeout:g} s to exchange {own}"
        if theirs != own:
            return _OTHER, (
                f"{name_of(cluster, worker)} exchanges {theirs}, and worker 0 {own}: all workers run the same program on"
                " tensors of the same shapes"
            )
    return None
