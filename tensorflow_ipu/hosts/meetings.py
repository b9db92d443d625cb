"""TensorFlow's collectives of the host at a named place, in all types: what workers exchange outside of programs."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._library import ops
from tensorflow_ipu._tensorflow.op_errors import plain_message
from tensorflow_ipu.hosts.announcing import announced
from tensorflow_ipu.hosts.muster import name_of

if TYPE_CHECKING:
    from tensorflow_ipu.hosts.cluster import World

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


def reduce_at(world: World, keys: CollectiveKeys, tensor: tf.Tensor, mean: bool, what: str) -> tf.Tensor:
    """The sum of what the workers have, or their mean.

    Args:
      world: The workers.
      keys: The keys of the exchange.
      tensor: Numbers, of the same type and shape on all of them. Those of 16 bits are added in float32.
      mean: Whether to divide by the number of workers. A mean of integers is cut to one.
      what: What the tensor is, for messages.

    Raises:
      tf.errors.OpError: A worker is lost, or did not call in time.
    """
    dtype = tensor.dtype
    if dtype.is_complex:
        carried = tf.stack([tf.math.real(tensor), tf.math.imag(tensor)], -1)
    else:
        carried = tf.cast(tensor, _ADDED_AS.get(dtype, dtype))
    with on_host(world, keys, what):
        total: Any = _limited(
            world,
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


def gather_at(world: World, keys: CollectiveKeys, tensor: tf.Tensor, what: str) -> tf.Tensor:
    """What the workers have, in their order along the first axis.

    Args:
      world: The workers.
      keys: The keys of the exchange.
      tensor: Of any type but text, with one axis at least, of the same type and shape on all of them.
      what: What the tensor is, for messages.

    Raises:
      tf.errors.OpError: A worker is lost, or did not call in time.
      TypeError: The tensor holds text.
    """
    carried = _carried(tensor, what)
    with on_host(world, keys, what):
        done = _limited(
            world,
            keys,
            what,
            carried,
            lambda given: tf.raw_ops.CollectiveGatherV2(input=given, ordering_token=[], **_shared(keys)),
        )
        length = tensor.shape[0]
        first = None if length is None else length * keys.group_size
        done = tf.ensure_shape(done, tf.TensorShape([first]).concatenate(tensor.shape[1:]))
        return _as_given(done, tensor.dtype)


def broadcast_at(world: World, keys: CollectiveKeys, tensor: tf.Tensor, root: int, what: str) -> tf.Tensor:
    """What worker `root` has.

    Args:
      world: The workers.
      keys: The keys of the exchange.
      tensor: Of any type but text, of the same type and shape on all of them.
      root: The number of the worker whose tensor it is.
      what: What the tensor is, for messages.

    Raises:
      tf.errors.OpError: A worker is lost, or did not call in time.
      TypeError: The tensor holds text.
    """
    carried = _carried(tensor, what)
    shared = _shared(keys)

    def exchanged(given: tf.Tensor) -> tf.Tensor:
        if world.worker == root:
            return tf.raw_ops.CollectiveBcastSendV2(input=given, **shared)
        return tf.raw_ops.CollectiveBcastRecvV2(T=given.dtype, shape=tf.shape(given), **shared)

    with on_host(world, keys, what):
        done = _limited(world, keys, what, carried, exchanged)
        return _as_given(tf.ensure_shape(done, tensor.shape), tensor.dtype)


@contextlib.contextmanager
def on_host(world: World, keys: CollectiveKeys, what: str) -> Iterator[None]:
    """A block of an exchange: on the worker's CPU, whose errors say what was exchanged and by whom."""
    announcement = announced(what) if _of_all(world, keys) else contextlib.nullcontext()
    try:
        with announcement, tf.device(world.device):
            yield
    except tf.errors.OpError as exc:
        message = told(world, plain_message(exc.message))
        raise type(exc)(exc.node_def, exc.op, message if what in message else f"{what}: {message}") from exc


def _limited(
    world: World, keys: CollectiveKeys, what: str, carried: tf.Tensor, exchanged: Callable[[tf.Tensor], tf.Tensor]
) -> tf.Tensor:
    """What a collective makes of a tensor; it ends with an error after the workers' limit, now or when the graph runs."""
    names = [name_of(world, worker) for worker in range(world.workers)] if _of_all(world, keys) else []
    # Not while another exchange computes the key.
    with tf.control_dependencies([keys.instance_key] if isinstance(keys.instance_key, tf.Tensor) else []):
        given, exchange = ops.ipu_begin_exchange(
            carried, what=what, limit=world.timeout, worker=world.worker, workers=names
        )
    return ops.ipu_end_exchange(exchanged(given), exchange)


def _of_all(world: World, keys: CollectiveKeys) -> bool:
    return keys.group_size == world.workers


def told(world: World, message: str) -> str:
    """A message of TensorFlow's with the workers in the place of its tasks."""

    def name(found: re.Match[str]) -> str:
        task = int(found[1])
        return f"worker {task} ({world.addresses[task]})" if task < world.workers else found[0]

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
