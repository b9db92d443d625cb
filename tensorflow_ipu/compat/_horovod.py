"""The names of `horovod.tensorflow` that scripts for IPUs use, implemented with `tensorflow_ipu.distributed`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tensorflow_ipu import distributed, hosts
from tensorflow_ipu._base.types import TensorLike
from tensorflow_ipu.compat import _popdist
from tensorflow_ipu.distributed import host_collectives
from tensorflow_ipu.hosts.mpi import Communicator

# The types of reductions, with the same values as in Horovod.
Average = 0
Sum = 1

shutdown = _popdist.finalizeBackend
is_initialized = _popdist.isBackendInitialized
rank = _popdist.getInstanceIndex
size = _popdist.getNumInstances
local_rank = _popdist.getLocalInstanceIndex


def init(comm: Communicator | None = None) -> None:
    """Connects all instances if there are several, or the instances of the mpi4py communicator `comm`."""
    if comm is None:
        _popdist.init()
    else:
        hosts.join(communicator=comm)


def local_size() -> int:
    """Returns the number of instances on this host."""
    identity = host_collectives.own_identity()
    return identity.local_workers or host_collectives.own_identity(hosts.join()).local_workers or 1


def is_homogeneous() -> bool:
    """Returns True if each host has the same number of instances."""
    return len(set(Counter(hosts.join().hosts).values())) == 1


def mpi_enabled() -> bool:
    """Returns True if there are several instances, because these communicate by MPI."""
    return size() > 1


def allreduce(
    tensor: TensorLike | tf.IndexedSlices,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: object = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> Any:
    """Returns the mean of a tensor over all instances, or the sum if `op` is `Sum` or `average` is False."""
    del device_dense, device_sparse
    if compression is not None:
        raise ValueError(f"`compression` must be None, but is {compression!r}: tensors are never compressed")
    if average is not None and op is not None:
        raise ValueError(f"`average` and `op` must not both be set, but are {average!r} and {op!r}; pass only `op`")
    if op is None:
        op = Sum if average is False else Average
    if op not in (Average, Sum):
        raise ValueError(f"`op` must be `Average` or `Sum`, but is {op!r}")
    if isinstance(tensor, tf.IndexedSlices):
        values = host_collectives.gather_rows(_scaled(tensor.values, prescale_factor), name and f"{name}.values")
        indices = host_collectives.gather_rows(tensor.indices, name and f"{name}.indices")
        if op == Average:
            values /= tf.cast(len(host_collectives.participants()), values.dtype)
        return tf.IndexedSlices(_scaled(values, postscale_factor), indices, dense_shape=tensor.dense_shape)
    reduced = distributed.allreduce(_scaled(tensor, prescale_factor), "MEAN" if op == Average else "SUM", name)
    return _scaled(reduced, postscale_factor)


def allgather(tensor: TensorLike, name: str | None = None) -> tf.Tensor:
    """Concatenates the tensors of all instances along the first axis."""
    return host_collectives.gather_rows(tensor, name)


def broadcast(tensor: TensorLike, root_rank: int = 0, name: str | None = None) -> tf.Tensor:
    """Returns the tensor of the instance `root_rank` on all instances."""
    return distributed.broadcast(tensor, root_rank, name)


def broadcast_variables(variables: Iterable[tf.Variable], root_rank: int = 0) -> tf.Operation | None:
    """Assigns to each variable the value that it has on the instance `root_rank`."""
    assignments: list[Any] = []
    for index, variable in enumerate(variables):
        # All instances must run the broadcasts in the same order, also in a graph.
        with tf.control_dependencies([] if tf.executing_eagerly() else assignments[-1:]):
            assignments.append(variable.assign(broadcast(variable, root_rank, f"broadcast_variables_{index}")))
    return None if tf.executing_eagerly() else tf.group(*assignments)


def broadcast_global_variables(root_rank: int = 0) -> tf.Operation | None:
    """Assigns to all variables of a TensorFlow 1 graph the values that they have on the instance `root_rank`."""
    if tf.executing_eagerly():
        raise RuntimeError(
            "`broadcast_global_variables` is for graphs of TensorFlow 1; call `broadcast_variables(variables)`"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


def _scaled(tensor: TensorLike, factor: float) -> Any:
    if factor == 1.0:
        return tensor
    values = tf.convert_to_tensor(tensor)
    return values * tf.cast(factor, values.dtype)
