"""`compile` turns a function into one program, in a graph with a session and in eager execution."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import compiler, scopes

v1 = tf.compat.v1

# TensorFlow warns of each initializable iterator in a graph.
pytestmark = pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options:UserWarning")


@pytest.fixture
def graph():
    """An empty default graph."""
    with tf.Graph().as_default() as graph:
        yield graph


def _numbers(count):
    return tf.data.Dataset.range(count).map(lambda x: tf.cast(x, tf.int32))


def _on_ipu(computation, inputs=None):
    with scopes.ipu_scope("/device:IPU:0"):
        return compiler.compile(computation, inputs)


def _echo(infeed, outfeed, count):
    """Returns the result of a program that enqueues `count` elements of the infeed to the outfeed and counts them."""
    return _on_ipu(lambda: ipu.loops.repeat(count, lambda i, x: (i + 1, outfeed.enqueue(x)), [0], infeed))


def test_eager_result_is_a_list_of_values_or_keeps_a_nested_structure():
    (result,) = _on_ipu(lambda x: x + 1, [2.0])
    assert result.numpy() == 3.0
    assert result.device.endswith("/device:IPU:0")
    result = _on_ipu(lambda x: {"a": x, "b": (x * 2,)}, [2.0])
    assert (result["a"].numpy(), result["b"][0].numpy()) == (2.0, 4.0)
    # Also on the CPU, in a computation that selects the device itself, and in a function.
    with tf.device("/device:CPU:0"):
        (result,) = compiler.compile(lambda x: x + 1, [2.0])
    assert result.device.endswith("/device:CPU:0")
    (placed,) = compiler.compile(lambda x: x + 1, [2.0])
    (named,) = compiler.compile(lambda: _on_ipu(lambda: tf.constant(2) + 1)[0])
    assert result.numpy() == placed.numpy() == named.numpy() == 3
    assert tf.function(lambda x: _on_ipu(lambda y: y * 2, [x])[0])(tf.constant(3.0)).numpy() == 6.0
    with scopes.ipu_scope("/device:IPU:0"):
        variable = tf.Variable(1.0)
    assert _on_ipu(lambda: tf.group(variable.assign_add(2.0))) is None
    assert variable.numpy() == 3.0


def test_nested_inputs_reach_the_computation_as_they_were_given(graph):
    x = v1.placeholder(tf.float32, [])
    run = _on_ipu(lambda pair, scale: (pair["a"] + pair["b"]) * scale, [{"a": x, "b": 1.0}, 2.0])
    with v1.Session() as session:
        assert session.run(run, {x: 4.0}) == [10.0]


def test_session_gets_tensors_and_runs_the_operations_behind_them(graph):
    def computation():
        variable = v1.get_variable("v", [3], initializer=v1.zeros_initializer())
        return tf.constant(5), tf.group(variable.assign_add([1.0, 2.0, 3.0]))

    def of_a_tensor():
        return v1.Variable(tf.ones([2]) * 3, name="w", use_resource=False).assign_add([1.0, 2.0]).op

    run, group = _on_ipu(computation), _on_ipu(of_a_tensor)
    assert isinstance(group, tf.Operation)
    variable, reference = v1.global_variables()
    assert [tensor.device for tensor in run] == [variable.device] == ["/device:IPU:0"]
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        assert [session.run(run) for _ in range(2)] == [[5], [5]]
        assert session.run(group) is None
        assert session.run(variable).tolist() == [2.0, 4.0, 6.0]
        assert session.run(reference).tolist() == [4.0, 5.0]


def test_training_in_a_session_equals_training_on_the_host(graph):
    x = np.random.default_rng(0).normal(size=[32, 3]).astype(np.float32)
    y = x @ np.array([[1.0], [-2.0], [0.5]], np.float32)

    def batches():
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(4, drop_remainder=True).repeat()

    infeed, outfeed = ipu.IPUInfeedQueue(batches()), ipu.IPUOutfeedQueue()

    def step(features, labels):
        with v1.variable_scope("model", reuse=v1.AUTO_REUSE, use_resource=True):
            weights = v1.get_variable("weights", [3, 1], initializer=v1.zeros_initializer())
        loss = tf.reduce_mean(tf.square(tf.matmul(features, weights) - labels))
        return loss, v1.train.MomentumOptimizer(0.05, 0.9).minimize(loss)

    def body(count, features, labels):
        loss, train = step(features, labels)
        with tf.control_dependencies([train]):
            return count + 1, outfeed.enqueue(loss)

    run = _on_ipu(lambda: ipu.loops.repeat(12, body, [0], infeed))
    losses, initializer = outfeed.dequeue(), infeed.initializer
    with v1.Session() as session:
        session.run([v1.global_variables_initializer(), initializer])
        assert session.run(run) == [12]
        on_ipu = session.run([losses, *v1.trainable_variables()])

    with tf.Graph().as_default():
        loss_and_train = step(*v1.data.make_one_shot_iterator(batches()).get_next())
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            on_host = [session.run(loss_and_train)[0] for _ in range(12)]
            weights = session.run(v1.trainable_variables()[0])
    np.testing.assert_allclose(on_ipu[0], on_host, rtol=1e-4)
    np.testing.assert_allclose(on_ipu[1], weights, rtol=1e-4)


def test_variables_without_a_device_are_where_the_program_is(graph):
    """The weight is float16 and its accumulator float32; the optimizer casts the mean gradient."""
    weight = tf.compat.v1.get_variable("weight", [], tf.float16, tf.compat.v1.ones_initializer(), use_resource=True)

    class Casting(tf.compat.v1.train.GradientDescentOptimizer):
        def apply_gradients(self, grads_and_vars, *args, **kwargs):
            pairs = [(tf.cast(gradient, variable.dtype), variable) for gradient, variable in grads_and_vars]
            assert [gradient.dtype for gradient, _ in grads_and_vars] == [tf.float32]
            return super().apply_gradients(pairs, *args, **kwargs)

    def step(x):
        options = {"dtype": tf.float32, "reduction_method": "mean"}
        accumulating = ipu.optimizers.GradientAccumulationOptimizerV2(Casting(0.5), 4, **options)
        with tf.control_dependencies([accumulating.minimize(weight * tf.cast(x, tf.float16))]):
            return x + 1

    trained = _on_ipu(lambda: ipu.loops.repeat(4, step, [tf.constant(1.0)]))
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(trained)
        assert session.run(weight) == 1 - 0.5 * (1 + 2 + 3 + 4) / 4


def test_session_fails_with_the_end_of_the_data_and_keeps_what_was_enqueued(graph, refused):
    infeed, outfeed = ipu.IPUInfeedQueue(_numbers(5)), ipu.IPUOutfeedQueue()
    run, rows, initializer = _echo(infeed, outfeed, 8), outfeed.dequeue(), infeed.initializer
    with v1.Session() as session:
        session.run(initializer)
        refused(tf.errors.OutOfRangeError, "after 5 elements", session.run, run)
        assert session.run(rows).tolist() == [0, 1, 2, 3, 4]


def test_feeds_start_anew_after_the_deleter_and_serve_one_session_after_another(graph, refused):
    # The end of a session once waited for its infeed, which waited for the session's devices. The process crashed.
    infeed, outfeed = ipu.IPUInfeedQueue(_numbers(9)), ipu.IPUOutfeedQueue()
    last = ipu.IPUOutfeedQueue(ipu.IPUOutfeedMode.LAST)
    run = _on_ipu(lambda: ipu.loops.repeat(3, lambda i, x: (i + 1, outfeed.enqueue(x), last.enqueue(x)), [0], infeed))
    rows, row, initializer, deleter = outfeed.dequeue(), last.dequeue(), infeed.initializer, infeed.deleter
    with pytest.raises(ValueError, match="once"):
        infeed.initializer  # noqa: B018
    with v1.Session() as session:
        refused(tf.errors.FailedPreconditionError, "initializer", session.run, run)
        refused(tf.errors.NotFoundError, "initializer", session.run, deleter)
        refused(tf.errors.FailedPreconditionError, "LAST", session.run, row)
    for _ in range(3):
        with v1.Session() as session:
            session.run(initializer)
            session.run(run)
            session.run(run)
            assert session.run(rows).tolist() == [0, 1, 2, 3, 4, 5]
            assert session.run(row) == 5
            session.run(deleter)
            session.run(initializer)
            session.run(run)
            assert session.run(rows).tolist() == [0, 1, 2]


def test_device_that_is_not_configured_and_a_queue_off_the_ipu_fail_when_the_session_runs(graph, refused):
    with scopes.ipu_scope("/device:IPU:7"):
        elsewhere = compiler.compile(lambda: tf.constant(1.0) + 1.0)
    infeed = ipu.IPUInfeedQueue(_numbers(5))
    off = ipu.loops.repeat(3, lambda i, x: i + x, [0], infeed)
    with v1.Session() as session:
        refused(tf.errors.FailedPreconditionError, "IPU:7", session.run, elsewhere)
        refused(tf.errors.FailedPreconditionError, "inside of `ipu_scope`", session.run, off)


def test_computation_off_an_ipu_is_refused_in_a_graph_unless_it_computes_nothing(graph, refused):
    for around in (contextlib.nullcontext(), tf.device("/device:CPU:0"), ipu.IPUStrategy().scope()):
        with around:
            refused(ValueError, "not placed on an IPU device.* `with ipu_scope", compiler.compile, tf.negative, [2.0])
            idle = compiler.compile(lambda: tf.no_op())
    with v1.Session() as session:
        session.run(idle)
    with tf.device("/job:worker/task:0"):
        (run,) = _on_ipu(lambda x: x + 1, [2.0])
    assert run.device == "/job:worker/task:0/device:IPU:0"


# Initial values once came from random operations of the program, which cannot run outside of it.
def test_initial_values_are_none_of_the_layers_of_a_program(graph):
    def draw(*_args, **_kwargs):
        return tf.random.stateless_uniform([3], [1, 2])

    run = _on_ipu(lambda: [tf.identity(v1.get_variable("weights", [3], initializer=draw)), draw()])
    drawn = [operation for operation in graph.get_operations() if operation.type == "StatelessRandomUniformV2"]
    assert ["_ipu_host_kernel" in operation.node_def.attr for operation in drawn] == [False]
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        on_host, on_ipu = session.run(run)
    np.testing.assert_array_equal(on_host, on_ipu)


# `host_kernels` of a strategy once had no effect on programs of `compile` in its scope.
@pytest.mark.parametrize("host_kernels", [False, True])
def test_strategy_around_says_whether_kernels_of_the_host_compute_layers(host_kernels):
    marked = []

    def draw():
        drawn = tf.random.stateless_uniform([3], [1, 2])
        (operation,) = [node for node in drawn.graph.get_operations() if node.type == "StatelessRandomUniformV2"]
        marked.append("_ipu_host_kernel" in operation.node_def.attr)
        return drawn

    with ipu.IPUStrategy(host_kernels=host_kernels).scope(), scopes.ipu_scope("/device:IPU:0"):
        compiler.compile(draw)
    assert marked == [host_kernels]


def test_initial_values_are_those_of_plain_tensorflow(graph):
    def computation():
        weights = v1.get_variable("weights", [3], initializer=v1.glorot_uniform_initializer())
        bias = v1.get_variable("bias", [3], initializer=v1.truncated_normal_initializer(stddev=0.1))
        scale = tf.Variable(tf.random.normal([3], seed=7) * 2 + tf.random.uniform([], seed=8), name="scale")
        offset = tf.Variable(v1.random_uniform([3], -1, 1, seed=9), name="offset")
        return (weights + bias) * scale + offset + 0 * tf.random.normal([3])

    runs = []
    for call in (computation, lambda: _on_ipu(computation)[0]):
        with tf.Graph().as_default():
            v1.set_random_seed(5)
            result = call()
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                runs.append([*session.run(v1.global_variables()), session.run(result)])
    for on_host, on_ipu in zip(*runs, strict=True):
        np.testing.assert_allclose(on_ipu, on_host, rtol=1e-5, atol=1e-6)


# TensorFlow once failed to lift initial values that depend on another variable or on an argument.
def test_initial_values_may_be_tensors_of_the_program(graph):
    x = tf.constant([1.0, 2.0])

    def computation(argument):
        ones = tf.ones([2])
        first = v1.get_variable("first", initializer=ones * 2)
        guarded = tf.cond(v1.is_variable_initialized(first), first.read_value, lambda: first.initial_value)

        def body(total):
            inner = v1.get_variable("inner", initializer=argument + x + ones)
            return total + inner

        [looped] = tf.nest.flatten(ipu.loops.repeat(2, body, [tf.zeros([2])]))
        variables = [v1.Variable(lambda: ones * 3), v1.Variable(guarded * 2)]
        return [*map(tf.identity, (first, *variables)), looped]

    def faulty(total):
        return total + v1.Variable(total)

    run = _on_ipu(computation, [x])
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        np.testing.assert_array_equal(session.run(run), [[2, 2], [3, 3], [4, 4], [6, 10]])
    with pytest.raises(ValueError, match="which changes from step to step of a loop"):
        _on_ipu(lambda: ipu.loops.repeat(2, faulty, [tf.zeros([2])]))


def test_initial_values_may_be_tensors_of_an_eager_program():
    variables = []

    def computation(argument):
        variables.append(tf.Variable(argument * 2))
        return variables[0].assign_add(tf.ones([2]))

    [result] = _on_ipu(computation, [tf.constant([1.0, 2.0])])
    np.testing.assert_array_equal(result, [3, 5])
    np.testing.assert_array_equal(variables[0], [3, 5])


def test_computation_on_two_devices_is_refused(refused):
    def part(ordinal):
        with scopes.ipu_scope(f"/device:IPU:{ordinal}"):
            return tf.constant(1) + 1

    refused(ValueError, "IPU:0, /device:IPU:1", compiler.compile, lambda: [part(0), part(1)])


@pytest.mark.parametrize(
    ("computation", "inputs", "kind", "message"),
    [
        (lambda x: x, None, TypeError, r"0 values of `inputs`.*\(x\)"),
        (lambda: 1, [1, 2], TypeError, "2 values of `inputs`"),
        (lambda x: x, 3, TypeError, "`inputs` must be a list"),
        (3, None, TypeError, "`computation` must be a function"),
        (lambda: (tf.no_op(), tf.constant(1)), None, ValueError, "tensors followed by"),
        (lambda: {"a": tf.no_op()}, None, ValueError, "nested structure"),
    ],
)
def test_wrong_call_says_what_is_wrong(computation, inputs, kind, message, refused):
    refused(kind, message, _on_ipu, computation, inputs)


# TensorFlow once raised: "Use `_distributed_apply()` instead of `apply_gradients()` in a cross-replica context".
def test_an_optimizer_in_the_scope_of_a_strategy_updates_the_weights():
    def in_scope():
        with ipu.IPUStrategy().scope():
            weight = v1.get_variable("weight", initializer=3.0, use_resource=True)

            def step(x):
                loss = (weight * x) ** 2
                return loss, v1.train.GradientDescentOptimizer(0.5).minimize(loss, var_list=[weight])

            return weight, compiler.compile(step, [2.0])

    weight, (loss,) = in_scope()
    assert (float(loss), float(weight)) == (36.0, 3.0 - 0.5 * 24.0)
    with tf.Graph().as_default(), v1.Session() as session:
        variable, results = in_scope()
        session.run(variable.initializer)
        assert session.run(results) == [36.0]
        assert session.run(variable) == 3.0 - 0.5 * 24.0
