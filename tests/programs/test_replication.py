"""A device of several IPUs runs a program once per replica, compiled once, however the run is called."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import scopes
from tensorflow_ipu.ops.cross_replica_ops import cross_replica_sum
from tensorflow_ipu.ops.replica_variables import read_groups
from tensorflow_ipu.ops.replication_ops import replication_index
from tensorflow_ipu.programs import shards_of


def ones() -> Any:
    """Returns the number of replicas, as the sum of a 1 from each."""
    return cross_replica_sum(1.0)


def test_program_runs_once_for_each_ipu_and_returns_what_the_first_replica_returns(replicas, each):
    @tf.function(jit_compile=True)
    def program(x: Any) -> Any:
        index = tf.cast(replication_index(), tf.float32)
        return {"own": index + x, "several": (x * index, [tf.ones([2, 3]) * index]), "none": None, "count": ones()}

    def read() -> Any:
        context = tf.distribute.get_replica_context()
        assert context.num_replicas_in_sync == 1  # Integers round towards zero on the host, as on IPUs.
        index = tf.cast(context.replica_id_in_sync_group, tf.float32)
        return replication_index(), context.all_reduce("sum", index), context.all_reduce("mean", {"x": index + 1})["x"]

    for count in (3, 16):
        strategy = replicas(count)
        result = strategy.run(program, (5.0,))
        assert (result["own"].numpy(), result["count"].numpy()) == (5, count)
        assert result["own"].device.endswith("device:IPU:0")
        assert result["several"][0].numpy() == 0
        np.testing.assert_array_equal(result["several"][1][0], np.zeros([2, 3]))
        assert result["none"] is None
        indices, total, mean = each(strategy, read)
        assert indices == list(range(count))
        assert total == [sum(range(count))] * count
        assert mean == [(count + 1) / 2] * count


def test_functions_of_all_kinds_run_on_replicas_and_keep_their_shapes_in_a_graph(replicas):
    strategy = replicas(3)
    for jit_compile in (None, False, True):
        assert strategy.run(tf.function(ones, jit_compile=jit_compile)).numpy() == 3
    concrete = tf.function(lambda: ones() + 1).get_concrete_function
    with strategy.scope(), tf.device("/device:IPU:0"):
        assert strategy.run(concrete()).numpy() == 4
    with scopes.ipu_scope("/device:IPU:0"):
        assert ipu.compiler.compile(lambda x: cross_replica_sum(x), [2.0])[0].numpy() == 6

    @tf.function
    def outer(x: Any) -> Any:
        result = strategy.run(tf.function(lambda x: {"x": tf.reduce_sum(x, 1)}), (x,))
        assert result["x"].shape == [3]
        assert strategy.run(tf.function(lambda: None)) is None
        return result

    np.testing.assert_array_equal(outer(tf.ones([3, 2]))["x"], [2, 2, 2])


def test_run_inside_of_a_graph_function(replicas):
    strategy = replicas(4)
    with strategy.scope():
        variable = tf.Variable(1.0)
    program = tf.function(lambda x: variable.assign_add(cross_replica_sum(x)), jit_compile=True)

    @tf.function
    def outer(x: Any, times: Any) -> Any:
        for _ in tf.range(times):
            x += strategy.run(program, (x,))
        return x

    # 1 + (1 + 4), then 6 + (5 + 24).
    assert outer(tf.constant(1.0), tf.constant(2)).numpy() == 6 + 29
    assert variable.numpy() == 29
    by_function = tf.function(lambda: strategy.run(lambda: ones() + 1))
    assert by_function().numpy() == 5
    around = tf.function(lambda: by_function() + strategy.run(tf.function(ones)))
    assert around().numpy() == 9


def test_session_runs_a_compiled_program_on_replicas(replicas):
    replicas(4)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        dataset = tf.data.Dataset.range(100).map(lambda x: tf.cast(x, tf.float32))
        infeed, outfeed = ipu.IPUInfeedQueue(dataset), ipu.IPUOutfeedQueue()

        def network() -> Any:
            weight = tf.compat.v1.get_variable("weight", initializer=1.0, use_resource=True)

            def body(x: Any) -> Any:
                train = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(weight * x)
                return train, outfeed.enqueue(cross_replica_sum(x))

            return ipu.loops.repeat(2, body, [], infeed)

        with scopes.ipu_scope("/device:IPU:0"):
            run = ipu.compiler.compile(network, [])
        weight = tf.compat.v1.global_variables()[0]
        results = outfeed.dequeue()
        session.run([tf.compat.v1.global_variables_initializer(), infeed.initializer])
        session.run(run)
        np.testing.assert_array_equal(session.run(results), [[6] * 4, [22] * 4])
        # Without a strategy, gradients are not reduced: replica 0 learns from elements 0 and 4.
        np.testing.assert_allclose(session.run(weight), 1 - 0.1 * (0 + 4))
        session.run(run)
        np.testing.assert_array_equal(session.run(results), [[38] * 4, [54] * 4])
        session.run(infeed.deleter)


# Elements of feeds and replica numbers were taken for compile-time constants if they were used as indices, so that each
# replica and each run compiled a separate program.
@pytest.mark.parametrize("ipus", [1, 8])
def test_replicas_and_runs_share_one_compilation(ipus, replicas, compilations):
    strategy, traces = replicas(ipus), []
    with strategy.scope():
        iterator = iter(tf.data.Dataset.range(100).map(lambda x: tf.cast(x % 3, tf.int32)))
        variable = tf.Variable(0.0)

    @tf.function(jit_compile=True)
    def program(x: Any) -> None:
        traces.append(1)
        summed: Any = cross_replica_sum(1)
        index: Any = replication_index()
        x = x[next(iterator)] + x[summed % 8] + x[index % 8]
        variable.assign_add(tf.reduce_sum(tf.matmul(x, x)))

    x = tf.ones([8, 8, 8])
    with compilations() as first:
        strategy.run(program, (x,))
    assert ["_program" in name for name in first] == [True]
    traced = len(traces)
    with compilations() as later:
        for _ in range(3):
            strategy.run(program, (x,))
    assert (len(traces), later) == (traced, [])


def test_one_function_runs_on_as_many_replicas_as_there_are_now(replicas, float_range):
    traces = []
    after_the_first_of_each = 0

    @tf.function(jit_compile=True)
    def program(iterator: Any, queue: Any) -> Any:
        traces.append(1)
        x = next(iterator)
        queue.enqueue(x)
        return cross_replica_sum(x)

    for count in (4, 2, 1, 8, 4, 1, 2):
        strategy, queue = replicas(count), ipu.IPUOutfeedQueue()
        with strategy.scope():
            iterator = iter(float_range())
        for run in range(2):
            row = np.arange(run * count, (run + 1) * count)
            assert strategy.run(program, (iterator, queue)).numpy() == row.sum()
            np.testing.assert_array_equal(queue.dequeue(), [row if count > 1 else row[0]])
        if count == 8:
            after_the_first_of_each = len(traces)
    assert len(traces) == after_the_first_of_each


# The IPUs of the device that a replica with shards uses.


def sharded(shards: int) -> Any:
    @tf.function(jit_compile=True)
    def program() -> Any:
        with scopes.ipu_shard(shards - 1):
            return ones()

    return program


def test_replica_takes_the_next_power_of_two_of_its_shards(replicas):
    for ipus, shards, count in ((4, 3, 1), (6, 2, 3), (16, 5, 2)):
        assert replicas(ipus).run(sharded(shards)).numpy() == count
    strategy = replicas(4)
    programs = [sharded(shards) for shards in (1, 2, 4, 2, 1)]
    assert [int(strategy.run(program)) for program in programs] == [4, 2, 1, 2, 4]
    assert tf.function(lambda: [strategy.run(program) for program in programs])()[1].numpy() == 2


@pytest.mark.parametrize(("ipus", "shards"), [(6, 4), (1, 2)])
def test_shards_that_do_not_divide_the_ipus_are_refused(ipus, shards, replicas):
    taken = 4 if shards > 2 else 2
    message = rf"^The program uses {taken} IPUs.*`/device:IPU:0` has {ipus}"
    message += rf".*Set `IPUConfig.auto_select_ipus` to a multiple of {taken}.$"
    strategy = replicas(ipus)
    with pytest.raises(tf.errors.FailedPreconditionError, match=message):
        strategy.run(sharded(shards))
    with pytest.raises(tf.errors.FailedPreconditionError, match=message):
        tf.function(lambda: strategy.run(sharded(shards)))()
    assert strategy.run(sharded(1)).numpy() == ipus


def test_the_highest_shard_of_a_program_and_its_functions_counts():
    def taken(function: Any) -> int:
        return shards_of(function.get_concrete_function(tf.constant(1.0)))

    @tf.function
    def looping(x: Any) -> Any:
        for _ in tf.range(3):
            with scopes.ipu_shard([0, 5]):
                x = x + 1.0
        with scopes.ipu_shard(2):
            return x * 2.0

    @tf.function
    def inner(x: Any) -> Any:
        with scopes.ipu_shard(3):
            return x + 1.0

    with scopes.ipu_shard(3):
        assert tf.constant(1.0) + 1.0 == 2.0  # It belongs to no program.
    assert [taken(tf.function(lambda x: x + 1.0)), taken(looping), taken(inner)] == [1, 6, 4]
    assert taken(tf.function(lambda x: inner(x) * 2.0)) == 4  # The function was traced before.


# TensorFlow's error was that an internal operation has no registered gradient.
def test_gradient_through_a_run_is_refused_and_says_where_to_take_it(replicas):
    strategy, x = replicas(2), tf.constant(3.0)
    square = tf.function(lambda x: x * x, jit_compile=True)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = strategy.run(square, (x,))
    with pytest.raises(NotImplementedError, match="inside of the program"):
        tape.gradient(y, x)

    @tf.function(jit_compile=True)
    def inside(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = cross_replica_sum(square(x))
        return tape.gradient(y, x)

    assert strategy.run(inside, (x,)).numpy() == 2 * 6  # The gradient of the sum is the sum.


STEPS, BATCH, FEATURES = 6, 4, 5
OPTIMIZERS = [lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True), lambda: keras.optimizers.Adam(0.05)]


def trained(weights: list[Any], optimizer: Any, x: Any, y: Any, scale: float) -> None:
    with tf.GradientTape() as tape:
        hidden = tf.tanh(x @ weights[0] + weights[1])
        loss = scale * tf.reduce_mean((hidden @ weights[2] + weights[3] - y) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))


@pytest.mark.parametrize(("count", "make"), list(zip((2, 4), OPTIMIZERS, strict=True)))
def test_keras_optimizer_sums_so_a_loss_divided_by_the_replicas_trains_as_the_whole_batch(count, make, replicas):
    random = np.random.default_rng(3)
    x = random.normal(size=(STEPS * count * BATCH, FEATURES)).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((x, np.tanh(x @ random.normal(size=(FEATURES, 2))).astype(np.float32)))
    initial = [random.normal(size=shape).astype(np.float32) for shape in [(FEATURES, 3), (3,), (3, 2), (2,)]]

    host_weights, optimizer = [tf.Variable(value) for value in initial], make()
    for batch in dataset.batch(count * BATCH):
        trained(host_weights, optimizer, *batch, 1.0)

    strategy = replicas(count)
    with strategy.scope():
        weights, optimizer = [tf.Variable(value) for value in initial], make()
        iterator = iter(dataset.batch(BATCH, drop_remainder=True))

    @tf.function(jit_compile=True)
    def program(iterator: Any) -> None:
        for _ in tf.range(STEPS):
            trained(weights, optimizer, *next(iterator), 1.0 / count)

    strategy.run(program, (iterator,))
    for weight, expected in zip(weights, host_weights, strict=True):
        of_replicas = read_groups(weight).numpy()  # Results are equal to the last bit on all replicas.
        assert (of_replicas == of_replicas[0]).all()
        np.testing.assert_allclose(weight, expected, rtol=2e-4, atol=2e-5)
