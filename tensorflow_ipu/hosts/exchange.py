"""Runs collectives of host tensors between workers, which call them in the same order."""

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
    """Runs a collective of host tensors, and returns its result.

    Args:
      cluster: The workers.
      kind: `sum`, `mean`, `broadcast` from worker `root`, `gather` along the first axis, or `rows`, which gathers
        tensors that may differ in length.
      value: The tensor of this worker.
      what: A description of the tensor for error messages.
      root: The worker whose value a broadcast returns.
      members: The workers that take part. None: all.
      name: The key of the collective, for workers that may run collectives in different orders. None: a description of
        it.

    Raises:
      TypeError: The tensor is a string, a resource or a variant.
    """
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype in (tf.string, tf.resource, tf.variant):
        raise TypeError(
            f"{what} is of type {tensor.dtype.name}, which collectives of workers do not support: use the same value on"
            " all workers instead"
        )
    call = functools.partial(collective, cluster, what=what, members=members, name=name)
    members = members or tuple(range(cluster.workers))
    if kind == "rows":
        lengths = call("gather", tf.shape(tensor, tf.int64)[:1])
        missing: Any = tf.reduce_max(lengths) - tf.shape(tensor, tf.int64)[0]
        padded = call("gather", tf.pad(tensor, [[0, missing], *[[0, 0]] * (tensor.shape.rank - 1)])[tf.newaxis])
        return tf.concat([padded[member, : lengths[member]] for member in range(len(members))], 0)
    if kind in ("sum", "mean") and tensor.dtype.is_complex:
        parts = call(kind, tf.stack([tf.math.real(tensor), tf.math.imag(tensor)]))
        return tf.complex(parts[0], parts[1])
    source = f" from worker {root}" if kind == "broadcast" else ""
    description = f"{kind}{source} of {tensor.dtype.name}{{}} ({what})"
    sequence = _sequence(name or description) + ("" if len(members) == cluster.workers else f" of {members}")
    root_index = members.index(root) if source else 0
    with tf.device("/device:CPU:0"):
        return ops.ipu_host_exchange(
            tensor,
            kind=kind,
            members=members,
            root=root_index,
            sequence=sequence,
            words=description,
            limit=cluster.timeout,
        )


def _sequence(name: str) -> str:
    """Returns the key that identifies a collective on all workers.

    On the main thread, the key is empty, and collectives match in their order. On other threads, whose order may
    differ, the key is `name`. In a graph, a session chooses the order, so the key is `name` with a count.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    if graph is not None and not graph.building_function:
        holder: Any = graph  # A graph accepts new attributes, though it has no `__dict__`.
        counts = holder._ipu_exchanges = getattr(holder, "_ipu_exchanges", Counter())
        counts[name] += 1
        return f"{name} {counts[name]}"
    return "" if threading.current_thread() is threading.main_thread() else name
