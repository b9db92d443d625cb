"""The names of `horovod.tensorflow` that scripts for IPUs use, over `tensorflow_ipu.distributed`."""

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

# Kinds of reductions, with Horovod's own numbers.
Average = 0
Sum = 1

shutdown = _popdist.finalizeBackend
is_initialized = _popdist.isBackendInitialized
rank = _popdist.getInstanceIndex
size = _popdist.getNumInstances
local_rank = _popdist.getLocalInstanceIndex


def init(comm: Communicator | None = None) -> None:
    """Joins all instances, once, if there are several; with `comm`, those of a communicator of mpi4py."""
    if comm is None:
        _popdist.init()
    else:
        hosts.join(communicator=comm)


def local_size() -> int:
    """Returns the number of instances of this one's host."""
    own = host_collectives.own_identity()
    return own.local_workers or host_collectives.own_identity(hosts.join()).local_workers or 1


def is_homogeneous() -> bool:
    """Returns True if each host has the same number of instances."""
    return len(set(Counter(hosts.join().hosts).values())) == 1


def mpi_enabled() -> bool:
    """Returns True if instances communicate by MPI, as several do."""
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
    """Reduces a tensor over all instances; their mean by default."""
    del device_dense, device_sparse
    if compression is not None:
        raise ValueError(f"`compression` must be None, but is {compression!r}: tensors are exchanged as they are")
    if average is not None and op is not None:
        raise ValueError(f"`average={average!r}` and `op={op!r}` say the same thing: give `op` alone")
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
    done = distributed.allreduce(_scaled(tensor, prescale_factor), "MEAN" if op == Average else "SUM", name)
    return _scaled(done, postscale_factor)


def allgather(tensor: TensorLike, name: str | None = None) -> tf.Tensor:
    """Concatenates the tensors of all instances along the first axis."""
    return host_collectives.gather_rows(tensor, name)


def broadcast(tensor: TensorLike, root_rank: int = 0, name: str | None = None) -> tf.Tensor:
    """Returns the tensor of one instance on all of them."""
    return distributed.broadcast(tensor, root_rank, name)


def broadcast_variables(variables: Iterable[tf.Variable], root_rank: int = 0) -> tf.Operation | None:
    """Assigns variables the values that they have on one instance."""
    done: list[Any] = []
    for index, variable in enumerate(variables):
        # One after the other, in a session too.
        with tf.control_dependencies([] if tf.executing_eagerly() else done[-1:]):
            done.append(variable.assign(broadcast(variable, root_rank, f"broadcast_variables_{index}")))
    return None if tf.executing_eagerly() else tf.group(*done)


def broadcast_global_variables(root_rank: int = 0) -> tf.Operation | None:
    """Assigns all variables of a graph of TensorFlow 1 the values that they have on one instance."""
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
