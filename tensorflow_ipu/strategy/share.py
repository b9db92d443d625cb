"""Selects the elements of a dataset that one worker reads."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensorflow_ipu._tensorflow import variables
from tensorflow_ipu.hosts import Cluster

_Policy = tf.data.experimental.AutoShardPolicy


def _policy(dataset: tf.data.Dataset) -> Any:
    options: Any = variables.options_of(dataset)
    return options.experimental_distribute.auto_shard_policy


def is_dealt(dataset: tf.data.Dataset) -> bool:
    """Returns True if workers share a dataset element by element, so that each knows how many all have."""
    return _policy(dataset) in (_Policy.AUTO, _Policy.DATA)


def share_of(dataset: tf.data.Dataset, cluster: Cluster, replicas: int) -> tf.data.Dataset:
    """Returns this worker's share of a dataset, by its policy.

    With 2 workers of 2 replicas, worker 0 gets the elements 0, 1, 4, 5 of a dataset of 11 that is dealt: 2 whole rounds.
    """
    workers, worker = cluster.workers, cluster.worker
    if workers == 1 or _policy(dataset) is _Policy.OFF:
        return dataset
    if not is_dealt(dataset):
        return variables.auto_sharded(dataset, workers, worker)
    if replicas == 1:
        share: Any = dataset.shard(workers, worker)
    else:
        numbered: Any = dataset.enumerate()
        numbered = numbered.filter(lambda number, *_: tf.equal(number // replicas % workers, worker))
        share = numbered.map(lambda _, *element: element[0] if len(element) == 1 else element)
    if not tf.executing_eagerly():
        return share
    elements = int(dataset.cardinality())
    if elements >= 0:
        elements = elements // (workers * replicas) * replicas
        share = share.take(elements)
    elif elements != int(tf.data.INFINITE_CARDINALITY):
        return share
    return share.apply(tf.data.experimental.assert_cardinality(elements))
