"""Has the collectives of programs cross to the other workers of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._library import ops
from tensorflow_ipu.hosts import meetings

if TYPE_CHECKING:
    from tensorflow_ipu.hosts.cluster import World
    from tensorflow_ipu.hosts.links import Links

_connected = False

# Of the one collective of TensorFlow's that runs here. Keys are a cluster's; strategies of TensorFlow's count from 1.
_KEY = 0x69707501


def connect(world: World, links: Links) -> None:
    """Tells the kernels who the other workers are, and how to reach them.

    All workers have to call this, since they meet in a collective of TensorFlow's: only after that does its runtime know
    the devices of all.

    Args:
      world: The cluster that this process has joined.
      links: The connections to the other workers, which the kernels take over. Where a worker lacks one, messages of all
        go by TensorFlow's server.

    Raises:
      tf.errors.OpError: Another worker did not come, or is gone.
    """
    global _connected  # noqa: PLW0603  (As the kernels are: a process is connected or not.)
    keys = meetings.CollectiveKeys(_KEY, _KEY, world.workers)

    def shared() -> tf.Tensor:
        return meetings.reduce_at(world, keys, tf.constant(int(links.complete)), False, "who has all connections")

    # In a graph: an operation that is called by itself is not told of TensorFlow's coordination service, by which workers
    # learn who is missing. From here on the kernels know it.
    linked = tf.function(shared, autograph=False).get_concrete_function()()
    with tf.device(world.device):
        tasks = [_task(world.device, worker) for worker in range(world.workers)]
        ops.ipu_connect_workers(
            worker=world.worker,
            tasks=tasks,
            addresses=list(world.addresses),
            limit=float(world.timeout),
            sockets=links.given_away() if int(linked) == world.workers else [],
        )
    _connected = True


def is_connected() -> bool:
    """Whether programs of this process cross to other workers."""
    return _connected


def _task(device: str, worker: int) -> str:
    spec = tf.DeviceSpec.from_string(device)
    return tf.DeviceSpec(job=spec.job, replica=spec.replica, task=worker).to_string()
