"""A graph that is built before the system is configured uses the configuration and the connection of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import compiler, optimizers, pipelining, scopes
from tensorflow_ipu.config import DeviceConnectionType, reset_ipu_configuration, reset_ipu_seed
from tensorflow_ipu.errors import NotConfiguredError
from tensorflow_ipu.ops import replication_ops

v1 = tf.compat.v1

# TensorFlow warns of any initializable iterator in a graph.
pytestmark = pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options:UserWarning")

RATE = 0.25
X = np.arange(48, dtype=np.float32) / 48
Y = np.arange(48, dtype=np.float32) % 5 / 5


@pytest.fixture
def graph() -> Iterator[tf.Graph]:
    """Yields an empty graph that is being built."""
    with tf.Graph().as_default() as graph:
        yield graph


def one_example() -> Any:
    return v1.get_variable("w", [], initializer=v1.ones_initializer())


def descent() -> Any:
    return v1.train.GradientDescentOptimizer(RATE)


def error(x: Any, w: Any, y: Any) -> Any:
    return tf.square(x * w - y)


def repeated(optimizer: Any, steps: int) -> Callable[[Any, Any], Any]:
    """Returns a loop of `steps` steps. Each step takes one example per replica."""

    def build(infeed: Any, outfeed: Any) -> Any:
        def body(x: Any, y: Any) -> Any:
            loss = error(x, one_example(), y)
            with tf.control_dependencies([optimizer().minimize(loss)]):
                return outfeed.enqueue(loss)

        return ipu.loops.repeat(steps, body, [], infeed)

    return build


def sharded(infeed: Any, outfeed: Any) -> Any:
    """Returns three steps with the weight on one IPU and the loss on another."""

    def body(x: Any, y: Any) -> Any:
        with scopes.ipu_shard(0):
            w = one_example()
        with scopes.ipu_shard(1):
            loss = error(x, w, y)
        with tf.control_dependencies([optimizers.CrossReplicaOptimizer(descent()).minimize(loss)]):
            return outfeed.enqueue(loss)

    return ipu.loops.repeat(3, body, [], infeed)


def pipelined(infeed: Any, outfeed: Any) -> Any:
    """Returns three steps of four micro-batches each, through two stages."""
    return pipelining.pipeline(
        [lambda x, y: (x * one_example(), y), lambda z, y: tf.square(z - y)],
        gradient_accumulation_count=4,
        repeat_count=3,
        infeed_queue=infeed,
        outfeed_queue=outfeed,
        optimizer_function=lambda loss: pipelining.OptimizerFunctionOutput(
            optimizers.CrossReplicaOptimizer(descent()), loss
        ),
        reduction_method="MEAN",
        pipeline_schedule=pipelining.PipelineSchedule.Grouped,
    )


def losses_and_weight(steps: int, examples: int) -> tuple[np.ndarray, float]:
    """Returns the results of plain gradient descent on the means of `examples` examples per step."""
    w = np.float32(1)
    losses = []
    for x, y in zip(X[: steps * examples].reshape(steps, -1), Y[: steps * examples].reshape(steps, -1), strict=True):
        losses.append(np.square(x * w - y))
        w = w - np.float32(RATE) * np.mean(2 * (x * w - y) * x)
    return np.stack(losses), float(w)


# The programs, their steps, the micro-batches of a step, and the IPUs of a replica.
PROGRAMS = {
    "mean": (repeated(lambda: optimizers.CrossReplicaOptimizer(descent()), 3), 3, 1, 1),
    "accumulated": (
        repeated(
            lambda: optimizers.CrossReplicaGradientAccumulationOptimizerV2(descent(), 2, reduction_method="MEAN"), 6
        ),
        3,
        2,
        1,
    ),
    "sharded": (sharded, 3, 1, 2),
    "pipelined": (pipelined, 3, 4, 2),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_trains_on_one_system_after_another(name, graph, replicas):
    build, steps, micro_batches, needed = PROGRAMS[name]
    infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices((X, Y)).repeat())
    outfeed = ipu.IPUOutfeedQueue()
    with scopes.ipu_scope("/device:IPU:0"):
        run = compiler.compile(lambda: build(infeed, outfeed))
    rows, start, stop = outfeed.dequeue(), infeed.initializer, infeed.deleter
    (weight,) = v1.trainable_variables()
    for count in (2, 1):
        replicas(count * needed)
        losses, trained = losses_and_weight(steps, count * micro_batches)
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), start])
            session.run(run)
            dequeued = session.run(tf.nest.flatten(rows)[0])
            assert dequeued.shape == (steps * micro_batches, *([count] if count > 1 else []))
            np.testing.assert_allclose(dequeued.reshape(losses.shape), losses, rtol=1e-4, atol=1e-6)
            assert session.run(weight) == pytest.approx(trained, rel=1e-5)
            session.run(stop)
    if needed > 1:
        replicas(1)
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), start])
            with pytest.raises(
                tf.errors.FailedPreconditionError, match=r"uses 2 IPUs.*`/device:IPU:0` has 1.*multiple of 2"
            ):
                session.run(run)
            session.run(stop)


def test_strategy_in_a_graph_sums_over_the_replicas_of_the_run(graph, replicas):
    strategy = ipu.IPUStrategy()

    def program(x: Any) -> Any:
        total = tf.distribute.get_replica_context().all_reduce("SUM", {"x": x, "one": tf.constant(1)})
        return total, variable.assign_add([x, x]), replication_ops.replication_index()

    with strategy.scope():
        variable = v1.get_variable("v", [2], initializer=v1.random_normal_initializer(seed=3))
        results = strategy.run(program, (tf.constant(2.0),))
    for count in (1, 4, 2, 1):
        replicas(count)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            start = session.run(variable)
            total, sums, index = session.run(results)
            assert (total, index) == ({"x": 2 * count, "one": count}, 0)
            np.testing.assert_allclose(sums, start + 2)


def test_random_numbers_of_a_graph_are_the_replicas_own(graph, replicas):
    outfeed = ipu.IPUOutfeedQueue()
    with scopes.ipu_scope("/device:IPU:0"):
        run = compiler.compile(lambda: outfeed.enqueue(tf.random.uniform([4])))
    rows = outfeed.dequeue()
    drawn = []
    for _ in range(2):
        replicas(3)
        reset_ipu_seed(7)
        with v1.Session() as session:
            session.run(run)
            drawn.append(session.run(rows))
    assert len(np.unique(drawn[0].reshape(3, 4), axis=0)) == 3
    np.testing.assert_array_equal(*drawn)


def test_gradient_through_a_run_of_a_graph_or_function_is_one_replicas_alone(replicas):
    strategy = ipu.IPUStrategy()

    @tf.function
    def of_function(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = strategy.run(tf.function(lambda x: tf.reduce_sum(x**3)), (x,))
        return tape.gradient(y, x)

    np.testing.assert_allclose(of_function(tf.constant([1.0, 2.0])), [3, 12], rtol=1e-6)
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [2])
        with scopes.ipu_scope("/device:IPU:0"):
            (y,) = compiler.compile(lambda x: tf.reduce_sum(x**3), [x])
        (gradient,) = tf.gradients(y, x)
        np.testing.assert_allclose(session.run(gradient, {x: [1.0, 2.0]}), [3, 12], rtol=1e-6)

        replicas(2)
        with pytest.raises(tf.errors.UnimplementedError, match="no gradient through a run on 2 replicas"):
            session.run(gradient, {x: [1.0, 2.0]})
    with pytest.raises(tf.errors.UnimplementedError, match="no gradient through a run on 2 replicas"):
        of_function(tf.constant([1.0, 2.0]))


def test_device_of_a_graph_is_configured_later(graph, replicas):
    with scopes.ipu_scope("/device:IPU:1"):
        (result,) = compiler.compile(lambda: one_example() + 1)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())  # A variable may be created before.
        with pytest.raises(tf.errors.OpError, match=r"/device:IPU:1"):
            session.run(result)
        replicas(1, 2)
        assert session.run(result) == 2


IPU2 = {"device_connection__version": "ipu2"}


@tf.function(jit_compile=True)
def program(variable: Any, x: Any) -> Any:
    variable.assign_add(x)
    return {"sum": variable + x, "vector": tf.stack([x, x]), "flag": x > 0, "none": None}


@pytest.mark.parametrize("wrap", [lambda run: run, tf.function], ids=["eager", "graph"])
def test_connection_says_whether_a_program_runs(wrap, strategy, configure):
    with strategy.scope():
        variable = tf.Variable(1.0)
    # The graph is traced before a system is configured. It uses the connection at the time of the run.
    run = wrap(lambda: strategy.run(program, (variable, tf.constant(2.0))))
    assert run()["sum"].numpy() == 5
    configure(device_connection__type=DeviceConnectionType.PRE_COMPILE, **IPU2)
    for _ in range(2):
        result = run()
        assert (result["sum"].dtype, result["sum"].numpy()) == (tf.float32, 0)
        np.testing.assert_array_equal(result["vector"], [0, 0])
        assert (result["flag"].dtype, bool(result["flag"])) == (tf.bool, False)
        assert result["none"] is None
    configure(device_connection__type=DeviceConnectionType.NEVER, **IPU2)
    with pytest.raises(
        tf.errors.FailedPreconditionError, match=r"`device_connection.type` is `NEVER`.*DeviceConnectionType.ALWAYS"
    ):
        run()
    assert variable.numpy() == 3
    for kind, total in ((DeviceConnectionType.ALWAYS, 7), (DeviceConnectionType.ON_DEMAND, 9)):
        configure(device_connection__type=kind, **IPU2)
        assert run()["sum"].numpy() == total


def test_a_device_that_compiles_only_asks_for_shapes_that_are_known(strategy, configure):
    spec = [tf.TensorSpec([None], tf.float32)]
    outer = tf.function(lambda x: strategy.run(tf.function(lambda x: x + 1), (x,)), input_signature=spec)
    configure(device_connection__type=DeviceConnectionType.PRE_COMPILE, **IPU2)
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"Result 0 .* not known .* `tf.ensure_shape`"):
        outer(tf.ones([2]))


def test_a_function_that_a_program_calls_is_traced_for_each_number_of_ipus(strategy, configure):
    traces = []

    @tf.function
    def inner(x: Any) -> Any:
        traces.append(1)
        context = tf.distribute.get_replica_context()
        return context.all_reduce("SUM", x) if context is not None else x

    assert inner(tf.constant(2.0)).numpy() == 2  # Operations that are traced for the host are not part of the program.
    outer = tf.function(lambda x: inner(x), jit_compile=True)
    results = [strategy.run(outer, (tf.constant(2.0),)).numpy()]
    for ipus in (2, 4, 2, 1):
        configure(ipus)
        results.append(strategy.run(outer, (tf.constant(2.0),)).numpy())
    assert results == [2, 4, 8, 4, 2]
    assert len(traces) == 4, "once for the host, and once for each number"


def test_run_on_a_device_that_is_not_configured_is_refused(configure):
    strategy = ipu.IPUStrategy("/device:IPU:1")
    calls = tf.function(lambda x: x + 1)
    with pytest.raises(NotConfiguredError, match=r"`/device:IPU:1` does not exist in the present configuration"):
        strategy.run(calls, (1,))
    configure(1, 1)
    assert strategy.run(calls, (1,)).numpy() == 2
    reset_ipu_configuration()
    with pytest.raises(NotConfiguredError, match=r"`/device:IPU:1` does not exist"):
        strategy.run(calls, (1,))
