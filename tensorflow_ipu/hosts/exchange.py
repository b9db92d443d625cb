"""Tensors of the host over all workers: outside of programs, by TensorFlow's own collectives.

All workers call the same functions in the same order, with the same types and shapes.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._tensorflow import cluster
from tensorflow_ipu.hosts import meetings
from tensorflow_ipu.hosts.announcing import announced
from tensorflow_ipu.hosts.cluster import World
from tensorflow_ipu.hosts.muster import name_of

if TYPE_CHECKING:
    from tensorflow_ipu._types import TensorLike

# Of the group of all workers in these collectives. Others have other keys.
_GROUP = 8200

# How the text of a verdict begins.
_LATE, _OTHER = "L", "O"
_REST = 2.0  # Seconds that worker 0's word may take beyond the limit: it began to wait at another time.

_numbers = itertools.count(1)
# What was exchanged eagerly: by its kind, type and shape, the number that it goes by from then on.
_known: dict[tuple[object, ...], int] = {}


def broadcast(world: World, value: TensorLike, what: str, root: int = 0) -> tf.Tensor:
    """The value that worker `root` has, on all workers.

    Args:
      world: The workers.
      value: A tensor of any type but text, of the same type and shape on all of them.
      what: What the value is, for messages.
      root: Whose value it is.

    Raises:
      tf.errors.OpError: A worker is lost, did not call in time, or has another shape.
      TypeError: The value holds text.
    """
    tensor = tf.convert_to_tensor(value)
    kind = f"broadcast from worker {root}"
    words = _words(kind, tensor, what)
    return meetings.broadcast_at(world, _keys(world, kind, tensor, words), tensor, root, words)


def all_reduce(world: World, value: TensorLike, mean: bool, what: str) -> tf.Tensor:
    """The sum of what all workers have, or their mean.

    Args:
      world: The workers.
      value: A tensor of numbers, of the same type and shape on all of them.
      mean: Whether to divide by the number of workers.
      what: What the value is, for messages.

    Raises:
      tf.errors.OpError: A worker is lost, did not call in time, or has another shape.
    """
    tensor = tf.convert_to_tensor(value)
    kind = "mean" if mean else "sum"
    words = _words(kind, tensor, what)
    return meetings.reduce_at(world, _keys(world, kind, tensor, words), tensor, mean, words)


def all_gather(world: World, value: TensorLike, what: str) -> tf.Tensor:
    """What all workers have, one behind the other along the first axis.

    Args:
      world: The workers.
      value: A tensor of numbers with one axis at least, of the same type and shape on all of them.
      what: What the value is, for messages.

    Raises:
      tf.errors.OpError: A worker is lost, did not call in time, or has another shape.
    """
    tensor = tf.convert_to_tensor(value)
    words = _words("gather", tensor, what)
    return meetings.gather_at(world, _keys(world, "gather", tensor, words), tensor, words)


def _words(kind: str, tensor: tf.Tensor, what: str) -> str:
    shape = "[...]" if tensor.shape.rank is None else tensor.shape.as_list()
    return f"{kind} of {tensor.dtype.name}{shape} ({what})"


def _keys(world: World, kind: str, tensor: tf.Tensor, words: str) -> meetings.CollectiveKeys:
    return meetings.CollectiveKeys(_GROUP, _key(world, kind, tensor, words), world.workers)


def _key(world: World, kind: str, tensor: tf.Tensor, words: str) -> int:
    """The number by which workers know an exchange from others.

    Eagerly, one exchange ends before the next begins, and each kind of them has one number for ever, since TensorFlow
    keeps what it knows of each. In a graph several may be under way, and each has a number of its own.
    """
    if not tf.executing_eagerly():
        return next(_numbers)
    known = (kind, tensor.dtype, tuple(tensor.shape))
    if known not in _known:
        number = next(_numbers)
        _compare(world, number, words)
        _known[known] = number
    return _known[known]


def _compare(world: World, number: int, words: str) -> None:
    """Has worker 0 compare what all workers are about to exchange: TensorFlow would wait for what does not fit.

    Raises:
      tf.errors.DeadlineExceededError: A worker did not come within the limit.
      tf.errors.InvalidArgumentError: A worker is about to exchange something else.
      tf.errors.UnavailableError: Worker 0 is lost.
    """
    with announced(words):
        said = _said_by_worker_0(world, f"tensorflow_ipu/exchange/{number}", words)
    if said:
        kind = tf.errors.DeadlineExceededError if said[0] == _LATE else tf.errors.InvalidArgumentError
        raise kind(None, None, said[1:])


def _said_by_worker_0(world: World, place: str, text: str) -> str:
    """What worker 0 makes of what all workers are about to exchange; empty for nothing wrong.

    Raises:
      tf.errors.OpError: Worker 0 is lost.
    """
    verdict = f"{place}/verdict"
    if world.worker == 0:
        found = _verdict(world, place, text)
        said = f"{found[0]}{found[1]}" if found else ""
        cluster.set_value(verdict, said)
        return said
    try:
        cluster.set_value(f"{place}/{world.worker}", text)
        return cluster.get_value(verdict, world.timeout + _REST)
    except tf.errors.DeadlineExceededError:
        return f"{_LATE}{name_of(world, 0)} did not come within {world.timeout:g} s to exchange {text}"
    except tf.errors.OpError as exc:
        raise tf.errors.UnavailableError(
            exc.node_def,
            exc.op,
            f"{name_of(world, 0)} is gone: its process ended, or was killed, or the network to it was cut, before all had"
            f" exchanged {text}. ({exc.message})",
        ) from exc


def _verdict(world: World, place: str, own: str) -> tuple[str, str] | None:
    """What is wrong with what the other workers are about to exchange, with the kind of it; None for nothing."""
    end = time.monotonic() + world.timeout
    for worker in range(1, world.workers):
        try:
            theirs = cluster.get_value(f"{place}/{worker}", max(0.001, end - time.monotonic()))
        except tf.errors.DeadlineExceededError:
            return _LATE, f"{name_of(world, worker)} did not come within {world.timeout:g} s to exchange {own}"
        if theirs != own:
            return _OTHER, (
                f"{name_of(world, worker)} exchanges {theirs}, and worker 0 {own}: all workers run the same program on tensors"
                " of the same shapes"
            )
    return None
