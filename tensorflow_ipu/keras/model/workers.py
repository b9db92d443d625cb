"""What the replicas of all workers return, put together on each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tensorflow_ipu.hosts import World, exchange

if TYPE_CHECKING:
    from tensorflow_ipu._types import Nested


def of_all_workers(world: World, element: Nested, replicas: int) -> Nested:
    """What the replicas of all workers have left in their outfeeds, one behind the other along the first axis.

    Args:
      world: The workers.
      element: What this worker's replicas have left: a structure of tensors, with the replicas along the first axis where
        there are several.
      replicas: How many these are.
    """
    parts = [np.asarray(part) for part in tf.nest.flatten(element)]
    rows = [part if replicas > 1 else part[None] for part in parts]
    gathered: list[Any] = [None] * len(rows)
    for kind in sorted({row.dtype.str for row in rows}):
        # Those of a type cross together.
        places = [at for at, row in enumerate(rows) if row.dtype.str == kind]
        flat = np.concatenate([rows[at].reshape(replicas, -1) for at in places], axis=1)
        joined = exchange.all_gather(world, flat, "what the replicas of a model return").numpy()
        begin = 0
        for at in places:
            size = int(np.prod(rows[at].shape[1:]))
            part = joined[:, begin : begin + size]
            gathered[at] = part.reshape(world.workers * replicas, *rows[at].shape[1:])
            begin += size
    return tf.nest.pack_sequence_as(element, gathered)


def steps_of_all_workers(world: World, elements: Nested, replicas: int) -> Nested:
    """The same of several steps, which are along the first axis: in the result too, and all replicas along the second."""

    def joined(part: tf.Tensor) -> tf.Tensor:
        own = part if replicas > 1 else tf.expand_dims(part, 1)
        # The axis of workers comes in front, and belongs behind that of steps.
        of_all = exchange.all_gather(world, own, "what the replicas of a model predict")
        by_worker = tf.reshape(of_all, [world.workers, *own.shape])
        order = [1, 0, *range(2, len(by_worker.shape))]
        steps, _, *rest = own.shape
        return tf.reshape(tf.transpose(by_worker, order), [steps, world.workers * replicas, *rest])

    return tf.nest.map_structure(joined, elements)
