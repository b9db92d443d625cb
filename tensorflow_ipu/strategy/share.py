"""Selects the elements of a dataset that a worker reads."""

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
    """Returns True if workers share a dataset element by element, so that each can compute the size of every share."""
    return _policy(dataset) in (_Policy.AUTO, _Policy.DATA)


def share_of(dataset: tf.data.Dataset, cluster: Cluster, replicas: int) -> tf.data.Dataset:
    """Returns this worker's share of a dataset, according to its auto-shard policy.

    If workers share the dataset element by element, it is divided into rounds of one element per replica. An incomplete
    last round is dropped, if the number of elements is known. With 2 workers of 2 replicas and 11 elements, worker 0
    gets the elements 0, 1, 4 and 5, and worker 1 gets 2, 3, 6 and 7.
    """
    workers, worker = cluster.workers, cluster.worker
    if workers == 1 or _policy(dataset) is _Policy.OFF:
        return dataset
    if not is_dealt(dataset):
        return variables.auto_sharded(dataset, workers, worker)
    if replicas == 1:
        share: Any = dataset.shard(workers, worker)
    else:
        enumerated: Any = dataset.enumerate()
        enumerated = enumerated.filter(lambda index, *_: tf.equal(index // replicas % workers, worker))
        share = enumerated.map(lambda _, *element: element[0] if len(element) == 1 else element)
    if not tf.executing_eagerly():
        return share
    elements = int(dataset.cardinality())
    if elements >= 0:
        elements = elements // (workers * replicas) * replicas
        share = share.take(elements)
    elif elements != int(tf.data.INFINITE_CARDINALITY):
        return share
    return share.apply(tf.data.experimental.assert_cardinality(elements))
