"""What a replica knows about itself."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu.ops import ReplicaGroups, _collectives
from tensorflow_ipu.ops.replication_ops import replication_index


@pytest.mark.parametrize("replicas", [2, 16])
def test_every_replica_has_its_own_index(replicated, replicas):
    results = replicated(lambda x: (replication_index(), x), [(np.float32(0),)] * replicas)
    assert [index for index, _ in results] == list(range(replicas))
    assert results[0][0].dtype == np.int32


def test_the_index_holds_in_loops_and_branches(replicated):
    def program(n):
        total = 0
        for _ in tf.range(n):
            if replication_index() > 0:
                total += replication_index()
        return total

    assert replicated(program, [(np.int32(5),)] * 3) == [0, 5, 10]


def test_the_rank_in_a_group(replicated):
    def program(x):
        near, far = ReplicaGroups(2), ReplicaGroups(2, orthogonal=True)
        return _collectives.rank("rank", near), _collectives.rank("rank", far), x

    results = replicated(program, [(np.float32(0),)] * 6)
    assert [near for near, _, _ in results] == [0, 1, 0, 1, 0, 1]
    assert [far for _, far, _ in results] == [0, 0, 0, 1, 1, 1]


def test_a_single_replica_is_the_first(strategy):
    assert strategy.run(tf.function(replication_index, jit_compile=True)) == 0


def test_an_eager_call_is_refused():
    with pytest.raises(RuntimeError, match="`replication_index` can only be called in a program"):
        replication_index()
