"""Exchanges tensors of the host between workers that call it in the same order."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from typing import Any

import tensorflow as tf

from tensorflow_ipu._base.types import TensorLike
from tensorflow_ipu._native.library import ops
from tensorflow_ipu.hosts.cluster import Cluster


def collective(
    cluster: Cluster,
    kind: str,
    value: TensorLike,
    what: str,
    *,
    root: int = 0,
    members: tuple[int, ...] | None = None,
    name: str | None = None,
) -> tf.Tensor:
    """Returns the result of a collective of tensors of the host.

    Args:
      cluster: The workers.
      kind: `sum`, `mean`, `broadcast` from worker `root`, `gather` along the first axis, or `rows`: a gather of tensors
        that may differ in length.
      value: The tensor of this worker.
      what: A description of the tensor for errors.
      root: The worker whose value a broadcast returns.
      members: The workers that take part; None for all.
      name: The key of the exchange if the workers may run it in another order; None for `what`.

    Raises:
      TypeError: The tensor is text, a resource or a variant.
    """
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype in (tf.string, tf.resource, tf.variant):
        raise TypeError(
            f"{what} is of type {tensor.dtype.name}, which workers cannot exchange: give all of them the same value"
        )
    again = functools.partial(collective, cluster, what=what, members=members, name=name)
    members = members or tuple(range(cluster.workers))
    if kind == "rows":
        lengths = again("gather", tf.shape(tensor, tf.int64)[:1])
        missing: Any = tf.reduce_max(lengths) - tf.shape(tensor, tf.int64)[0]
        padded = again("gather", tf.pad(tensor, [[0, missing], *[[0, 0]] * (tensor.shape.rank - 1)])[tf.newaxis])
        return tf.concat([padded[at, : lengths[at]] for at in range(len(members))], 0)
    if kind in ("sum", "mean") and tensor.dtype.is_complex:
        parts = again(kind, tf.stack([tf.math.real(tensor), tf.math.imag(tensor)]))
        return tf.complex(parts[0], parts[1])
    source = f" from worker {root}" if kind == "broadcast" else ""
    words = f"{kind}{source} of {tensor.dtype.name}{{}} ({what})"
    sequence = _sequence(name or words) + ("" if len(members) == cluster.workers else f" of {members}")
    place = members.index(root) if source else 0
    with tf.device("/device:CPU:0"):
        return ops.ipu_host_exchange(
            tensor, kind=kind, members=members, root=place, sequence=sequence, words=words, limit=cluster.timeout
        )


def _sequence(name: str) -> str:
    """Returns the key of an exchange: its place among those of the main thread, or a name where there is no order."""
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    if graph is not None and not graph.building_function:
        plain: Any = graph  # A plain graph takes attributes, though it shows no `__dict__`.
        counted = plain._ipu_exchanges = getattr(plain, "_ipu_exchanges", Counter())
        counted[name] += 1
        return f"{name} {counted[name]}"
    return "" if threading.current_thread() is threading.main_thread() else name
