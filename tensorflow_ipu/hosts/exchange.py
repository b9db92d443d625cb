"""Exchanges tensors of the host between workers that call the same functions in the same order."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import tensorflow as tf

from tensorflow_ipu._base.types import TensorLike
from tensorflow_ipu._native.library import ops
from tensorflow_ipu.hosts.cluster import Cluster


def broadcast(
    cluster: Cluster,
    value: TensorLike,
    what: str,
    root: int = 0,
    members: tuple[int, ...] | None = None,
    name: str | None = None,
) -> tf.Tensor:
    """The value of worker `root`, on all workers or all of `members`."""
    tensor = tf.convert_to_tensor(value)
    members = members or tuple(range(cluster.workers))
    place = members.index(root)
    return _exchanged(cluster, tensor, "broadcast", f"broadcast from worker {root}", what, members, name, place)


def all_reduce(
    cluster: Cluster,
    value: TensorLike,
    mean: bool,
    what: str,
    members: tuple[int, ...] | None = None,
    name: str | None = None,
) -> tf.Tensor:
    """The sum of the workers' values, or their mean."""
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype.is_complex:
        parts = tf.stack([tf.math.real(tensor), tf.math.imag(tensor)])
        real, imaginary = tf.unstack(all_reduce(cluster, parts, mean, what, members, name))
        return tf.complex(real, imaginary)
    kind = "mean" if mean else "sum"
    return _exchanged(cluster, tensor, kind, kind, what, members or tuple(range(cluster.workers)), name)


def all_gather(
    cluster: Cluster, value: TensorLike, what: str, members: tuple[int, ...] | None = None, name: str | None = None
) -> tf.Tensor:
    """The workers' values, concatenated along the first axis."""
    members = members or tuple(range(cluster.workers))
    return _exchanged(cluster, tf.convert_to_tensor(value), "gather", "gather", what, members, name)


def _exchanged(
    cluster: Cluster,
    tensor: tf.Tensor,
    kind: str,
    words: str,
    what: str,
    members: tuple[int, ...],
    name: str | None,
    root: int = 0,
) -> tf.Tensor:
    if tensor.dtype in (tf.string, tf.resource, tf.variant):
        raise TypeError(
            f"{what} is of type {tensor.dtype.name}, which workers cannot exchange: give all of them the same value"
        )
    words = f"{words} of {tensor.dtype.name}{{}} ({what})"
    of_all = len(members) == cluster.workers
    sequence = _sequence(name or words) + ("" if of_all else f" of {members}")
    with tf.device("/device:CPU:0"):
        return ops.ipu_host_exchange(
            tensor, kind=kind, members=members, root=root, sequence=sequence, words=words, limit=cluster.timeout
        )


def _sequence(name: str) -> str:
    """The key of an exchange: its place among those of the main thread, or a name where there is no order."""
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    if graph is not None and not graph.building_function:
        plain: Any = graph  # A plain graph takes attributes, though it shows no `__dict__`.
        counted = plain._ipu_exchanges = getattr(plain, "_ipu_exchanges", Counter())
        counted[name] += 1
        return f"{name} {counted[name]}"
    return "" if threading.current_thread() is threading.main_thread() else name
