"""Which elements of a dataset that all workers have are a worker's."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensorflow_ipu._tensorflow import data
from tensorflow_ipu.hosts.cluster import World

_Policy = tf.data.experimental.AutoShardPolicy


def deals(dataset: tf.data.Dataset) -> bool:
    """Whether workers share a dataset element by element: then each knows how many all of them have."""
    return _policy(dataset) in (_Policy.AUTO, _Policy.DATA)


def share_of(dataset: tf.data.Dataset, world: World, replicas: int) -> tf.data.Dataset:
    """The share of a worker.

    Args:
      dataset: What all workers have, in the same order.
      world: The workers.
      replicas: How many replicas each worker has.

    Returns:
      The dataset where there is one worker. Else, by the policy of its options: `AUTO` and `DATA`: the elements k with
      `k // replicas % workers == worker`, of as many rounds as are whole where their number is known; `FILE` and `HINT`:
      what TensorFlow makes of them; `OFF`: all.
    """
    policy = _policy(dataset)
    if world.workers == 1 or policy is _Policy.OFF:
        return dataset
    if policy not in (_Policy.AUTO, _Policy.DATA):
        return data.auto_sharded(dataset, world.workers, world.worker)
    return _dealt(dataset, world.workers, world.worker, replicas)


def _policy(dataset: tf.data.Dataset) -> Any:
    options: Any = data.options_of(dataset)
    return options.experimental_distribute.auto_shard_policy


def _dealt(dataset: tf.data.Dataset, workers: int, worker: int, replicas: int) -> tf.data.Dataset:
    whole: Any = dataset.cardinality()
    mine: Any
    if replicas == 1:
        mine = dataset.shard(workers, worker)
    else:

        def is_mine(number: Any, *_: Any) -> Any:
            return tf.equal(number // replicas % workers, worker)

        def without_number(_: Any, *element: Any) -> Any:
            return element[0] if len(element) == 1 else element

        mine = dataset.enumerate().filter(is_mine).map(without_number)
    if not tf.executing_eagerly():
        return mine
    rounds = int(whole) if int(whole) < 0 else int(whole) // (workers * replicas)
    if rounds < 0:
        infinite = rounds == int(tf.data.INFINITE_CARDINALITY)
        return mine.apply(tf.data.experimental.assert_cardinality(rounds)) if infinite else mine
    return mine.take(rounds * replicas).apply(tf.data.experimental.assert_cardinality(rounds * replicas))
