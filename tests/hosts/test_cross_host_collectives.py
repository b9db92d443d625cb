"""Collectives of programs that several workers run: the numbers of one process, and an end to every wait."""

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import hosts
from tensorflow_ipu.ops import all_to_all_op, cross_replica_ops, reduce_scatter_op, replication_ops
from tensorflow_ipu.replicas import ReplicaGroups

# What the workers run, and this process. They import this file.


def system(replicas):
    hosts.join(timeout=60.0)
    config = ipu.IPUConfig()
    config.auto_select_ipus = replicas
    config.configure_ipu_system()
    return ipu.IPUStrategy()


def groupings(replicas):
    sizes = [size for size in range(1, replicas + 1) if replicas % size == 0]
    kinds = [*((size, False) for size in sizes), *((size, True) for size in sizes[1:-1])]
    return {f"{size}{'o' * orthogonal}": ReplicaGroups(size, orthogonal=orthogonal) for size, orthogonal in kinds}


def exchanges(groups):
    """All collectives in groups of one kind."""
    index = tf.cast(replication_ops.replication_index(), tf.float32)
    x = tf.reshape(tf.range(7, dtype=tf.float32), [7]) * (index + 2) - index * index
    table = tf.reshape(tf.range(12, dtype=tf.float32), [12, 1]) + 100 * index
    return {
        "sum": cross_replica_ops.cross_replica_sum(x, groups),
        "mean": cross_replica_ops.cross_replica_mean(tf.cast(x, tf.int32), groups),
        "half": cross_replica_ops.cross_replica_sum(tf.cast(x, tf.float16), groups),
        "broadcast": cross_replica_ops.cross_replica_broadcast(x, groups.size - 1, groups),
        "gather": all_to_all_op.all_gather(tf.cast(x, tf.int8), groups),
        "exchange": all_to_all_op.all_to_all(table, 0, 1, groups),
        "max": reduce_scatter_op.reduce_scatter(x, groups, "COLLECTIVE_OP_MAX"),
        "product": reduce_scatter_op.reduce_scatter(x, groups, "COLLECTIVE_OP_MUL"),
        "local": reduce_scatter_op.reduce_scatter(x, groups, "COLLECTIVE_OP_LOCAL"),
        "any": all_to_all_op.all_gather(x > 5, groups),
    }


def exchange_all(replicas, of_all):
    """What each replica of this process gets of each collective in each kind of groups."""
    strategy = system(replicas)
    outfeed = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program():
        outfeed.enqueue({name: exchanges(groups) for name, groups in groupings(of_all).items()})

    strategy.run(program)
    return tf.nest.map_structure(lambda rows: rows[0], outfeed.dequeue())


def loop(replicas, steps):
    """Sums in a loop, in a branch that depends on one, and in another loop that ends by one."""
    strategy = system(replicas)

    @tf.function(jit_compile=True)
    def program(steps):
        index = tf.cast(replication_ops.replication_index(), tf.float32)
        total = tf.zeros([])
        for step in tf.range(steps):
            mean = cross_replica_ops.cross_replica_mean(index + tf.cast(step, tf.float32))
            if mean > 5:
                total += cross_replica_ops.cross_replica_sum(index)
            else:
                total += mean
        while cross_replica_ops.cross_replica_sum(total) < 5000.0:
            total *= 2.0
        return total, replication_ops.replication_index()

    return strategy.run(program, args=(tf.constant(steps),))


def count(replicas=2, steps=2, divide=False, group=0, extra=False, length=2, pack=None):
    """Runs so many steps; each worker may take others. Returns the sum, or raises."""
    strategy = system(replicas)

    @tf.function(jit_compile=True)
    def train(steps):
        total = tf.zeros([length])
        for _ in tf.range(steps):
            total += cross_replica_ops.cross_replica_sum(tf.ones([length]), group)
        if extra:
            total += cross_replica_ops.cross_replica_mean(tf.ones([length]))
        if divide:
            tf.debugging.assert_equal(steps, 0, message="the data are bad")
        return total

    if pack is None:
        return strategy.run(train, args=(tf.constant(steps),))
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=pack)
    ipu.IPUMultiWorkerStrategy(communication_options=options)
    try:
        return strategy.run(train, args=(tf.constant(steps),))
    finally:
        ipu.IPUMultiWorkerStrategy()


def test_all_collectives_do_what_they_do_in_one_process(workers):
    for replicas in (1, 3):
        expected = exchange_all(2 * replicas, 2 * replicas)
        for worker, found in enumerate(workers.call(exchange_all, replicas, 2 * replicas)):
            own = slice(worker * replicas, (worker + 1) * replicas)
            for groups, of_groups in expected.items():
                for name, values in of_groups.items():
                    np.testing.assert_array_equal(
                        found[groups][name],
                        values.numpy()[own].reshape(found[groups][name].shape),
                        err_msg=f"{name} in groups of {groups} on worker {worker} of {replicas} replicas",
                    )


def test_collectives_cross_in_loops_and_branches(workers):
    expected, _ = loop(4, 12)
    for worker, (total, index) in enumerate(workers.call(loop, 2, 12)):
        assert total == pytest.approx(float(expected))
        assert index == 2 * worker


def test_a_worker_that_ends_early_is_named_and_the_next_run_goes_on(workers):
    late, early = workers.outcomes(count, 2, workers.each([12, 5]))
    np.testing.assert_array_equal(early.value, [20, 20])
    assert late.kinds[0] == "UnavailableError"
    assert f"{workers.names[1]} ended its run of `train` after 5 collectives" in late.message
    for value in workers.call(count, 2, 3):
        np.testing.assert_array_equal(value, [12, 12])


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (
            {"group": [0, 4]},
            "InvalidArgumentError",
            "collective 1 of its `train` is `cross_replica_sum` of float32[2] (reduction sum, in groups of 4)",
        ),
        ({"length": [3, 4]}, "InvalidArgumentError", "on this worker it is `cross_replica_sum` of float32[3]"),
        (
            {"extra": [True, False]},
            "InvalidArgumentError",
            "its `train` has 1 collective, and `train` on this worker has 2",
        ),
        ({"replicas": [1, 2]}, "InvalidArgumentError", "has 2 replicas"),
        ({"pack": [4, 0]}, "InvalidArgumentError", "sends chunks of up to 1048576 bytes, and this worker 4."),
        ({"steps": [4, 2], "divide": [False, True]}, "UnavailableError", "failed in its run of `train`"),
    ],
)
def test_worker_that_runs_something_else_or_fails_is_named_with_what_differs(workers, options, kind, message):
    each = {name: workers.each(values) for name, values in options.items()}
    first, second = workers.outcomes(count, **each)
    assert first.kinds[0] == kind
    assert second.kinds[0] == "InvalidArgumentError"
    assert workers.names[1] in first.message
    assert message in first.message
    assert (workers.names[0] in second.message) != ("the data are bad" in first.message)


def test_small_packs_carry_the_same(workers):
    for value in workers.call(count, pack=4):
        np.testing.assert_array_equal(value, [8, 8])
