"""The collectives that strategies and optimizers use: all-reduce and all-gather over all replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._tensorflow import graphs
from tensorflow_ipu.config import _state
from tensorflow_ipu.ops import _collectives, sites
from tensorflow_ipu.programs import ReplicaGroups

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested

__all__ = ["all_gather", "all_reduce", "in_program"]


def in_program() -> bool:
    """Returns True if a program for an IPU device is being traced."""
    return sites.on_ipu()


def all_reduce(values: Sequence[tf.Tensor], mean: bool = False) -> list[tf.Tensor]:
    """Sums tensors over all replicas, in the order of the replicas, or computes their mean.

    Raises:
      RuntimeError: No program is being traced.
      TypeError: A tensor is not of a numeric type.
    """
    if not values:
        return []
    return _collectives.all_reduce("all_reduce", values, "mean" if mean else "sum", ReplicaGroups())


def all_gather(values: Nested, axis: int, ordinal: int, workers: int) -> Nested:
    """Concatenates the tensors of all replicas along `axis`, in the program that is being traced for a device.

    The static shape of the result depends on the current number of replicas. A graph's program fails if it later runs on
    another number.
    """
    *_, program = graphs.around(tf.compat.v1.get_default_graph())
    ipus = programs.ipus_traced_for()
    count = (ipus or _state.ipus_or_one(ordinal)) // programs.power_of_2(programs.shards_of(program)) * workers
    flat = [tf.convert_to_tensor(value) for value in tf.nest.flatten(values)]
    checks = []
    if ipus is None:
        [replicas] = all_reduce([tf.constant(1)])
        message = (
            f"`all_gather` was built into a graph while the device had {count} replicas, which the shape of its result"
            " depends on: configure the system before the graph is built"
        )
        checks.append(tf.debugging.assert_equal(replicas, count, message))
    with tf.control_dependencies(checks):
        if count == 1:
            return tf.nest.map_structure(tf.identity, values)
        gathered = _collectives.all_gather("all_gather", flat, ReplicaGroups(count))
        joined = [tf.concat(tf.unstack(rows, count), axis) for rows in gathered]
    return tf.nest.pack_sequence_as(values, joined)
