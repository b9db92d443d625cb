"""The share of a worker in a dataset that all workers have."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensorflow_ipu._tensorflow import variables
from tensorflow_ipu.hosts.cluster import Cluster

_Policy = tf.data.experimental.AutoShardPolicy


def deals(dataset: tf.data.Dataset) -> bool:
    """Whether workers share a dataset element by element: then each knows how many all of them have."""
    return _policy(dataset) in (_Policy.AUTO, _Policy.DATA)


def share_of(dataset: tf.data.Dataset, cluster: Cluster, replicas: int) -> tf.data.Dataset:
    """The share of a worker."""
    policy = _policy(dataset)
    if cluster.workers == 1 or policy is _Policy.OFF:
        return dataset
    if policy not in (_Policy.AUTO, _Policy.DATA):
        return variables.auto_sharded(dataset, cluster.workers, cluster.worker)
    return _dealt(dataset, cluster.workers, cluster.worker, replicas)


def _policy(dataset: tf.data.Dataset) -> Any:
    options: Any = variables.options_of(dataset)
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
