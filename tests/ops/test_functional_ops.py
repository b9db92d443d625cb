"""Outlined functions: the results of plain calls, and one copy of their code in the program."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._tensorflow import functions
from tensorflow_ipu.ops.cross_replica_ops import cross_replica_sum
from tensorflow_ipu.ops.functional_ops import outlined_function
from tensorflow_ipu.ops.gradient_capture import (
    GradientCaptureContext,
    GradientCaptureTape,
    capture_upstream_gradients,
)
from tensorflow_ipu.ops.replication_ops import replication_index

DIGEST_BYTES = 20  # The digest with which a file of the cache begins.
OBJECT_FILES = 8  # The field of `xla.cpu.CompilationResultProto`.
X = tf.constant(np.random.default_rng(0).normal(size=[4, 4]) / 4, tf.float32)


def not_outlined(function=None, **_):
    return function if function is not None else lambda inner: inner


def compare(strategy, body, x, rtol, decorator=outlined_function):
    results = strategy.run(tf.function(lambda x: body(decorator, x), jit_compile=True), (x,))
    references = tf.function(lambda x: body(not_outlined, x))(x)
    for actual, expected in zip(*map(tf.nest.flatten, (results, references)), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=rtol, atol=1e-5)


def products(strategy, program):
    """Returns the number of matrix products in the HLO of a program, and its size without reads of results of calls."""
    device = strategy.extended.ipu_device
    with tf.device(device):
        prepared = strategy.prepare(program, (X,)).program
        text = functions.hlo_of(prepared.function, prepared.inputs, device, "hlo").decode()
    reads_of_results = re.compile(r"^.* (get-tuple-element\(|call\(.*to_apply=%first).*\n", re.MULTILINE)
    return text.count(" dot("), len(reads_of_results.sub("", text))


def deep(outlined, calls, x, weights):
    """Returns the results of `calls` calls of two nested blocks, and the gradients of all inputs."""

    @outlined(name="inner")
    def inner(values, factor):
        return [tf.tanh(tf.matmul(values["x"], weights) * factor), tf.size(values["x"])]

    @outlined
    def block(x, y):
        first, _ = inner({"x": x}, 0.5)
        second, size = inner({"x": first + y}, factor=0.5)
        return {"sum": x + second, "size": size}

    with tf.GradientTape() as tape:
        tape.watch(x)
        y, size = x, 0
        for _ in range(calls):
            result = block(y, x)
            y, size = result["sum"], size + result["size"]
        loss = tf.reduce_sum(tf.cast(y, tf.float32) ** 2)
    return y, size, *tape.gradient(loss, [x, weights])


@pytest.mark.parametrize(("dtype", "rtol"), [(tf.float32, 1e-5), (tf.float16, 5e-2)])
def test_numbers_and_gradients_are_those_of_plain_calls(dtype, rtol, strategy):
    x = tf.cast(X, dtype)
    with strategy.scope():
        weights = tf.Variable(tf.transpose(x))
    compare(strategy, lambda outlined, x: deep(outlined, 2, x, weights), x, rtol)


def test_code_is_in_the_program_once_forward_and_backward(strategy):
    with strategy.scope():
        weights = tf.Variable(X)

    def count(outlined, calls):
        return products(strategy, tf.function(lambda x: deep(outlined, calls, x, weights), jit_compile=True))[0]

    assert count(outlined_function, 4) == count(outlined_function, 1)
    assert count(not_outlined, 4) == 4 * count(not_outlined, 1)


CALLS = """
    import pathlib, sys
    import tensorflow as tf
    import tensorflow_ipu as ipu
    from tensorflow_ipu.ops.functional_ops import outlined_function

    strategy = ipu.IPUStrategy()
    x = tf.reshape(tf.sin(tf.range(4096.0)), [64, 64])
    with strategy.scope():
        weights = [tf.Variable(x * at / 8) for at in range(1, 5)]

    @outlined_function
    def block(x, weight):
        return tf.nn.softmax(x @ tf.transpose(x)) @ weight

    for calls in (2, 4):
        @tf.function(jit_compile=True)
        def program(x):
            with tf.GradientTape() as tape:
                for weight in weights[:calls]:
                    x = block(x, weight)
            return tape.gradient(x, weights[:calls])

        folder = pathlib.Path(sys.argv[1]) / str(calls)
        ipu.executables.set_cache(folder)
        strategy.report(program, (x,))  # It asks TensorFlow for the program before any has run.
        strategy.run(program, (x,))
    """


def machine_code(file):
    """Returns the bytes of machine code in an executable, which has XLA's results as a message of Protocol Buffers."""
    contents, position, size_of_code = file.read_bytes()[DIGEST_BYTES:], 0, 0

    def number():
        nonlocal position
        value = shift = 0
        while True:
            byte = contents[position]
            position, value, shift = position + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while position < len(contents):
        key, size = number(), number()
        if key & 7 == 2:  # Otherwise `size` is the value of the field.
            position += size
            size_of_code += size * (key >> 3 == OBJECT_FILES)
    return size_of_code


@pytest.mark.skipif(
    tf.__version__.startswith("2.20."), reason="XLA of TensorFlow 2.20 repeats the code: docs/install.md"
)
def test_machine_code_hardly_grows_with_the_number_of_calls(run_script, tmp_path):
    # With the `XLA_FLAGS` of the tests, XLA compiles fast and does not share machine code.
    run_script(CALLS, str(tmp_path), env={"XLA_FLAGS": ""})
    two, four = (sum(map(machine_code, (tmp_path / str(calls)).glob("*.ipu_executable"))) for calls in (2, 4))
    assert two > 10_000
    assert four < 1.25 * two


def test_functions_that_do_the_same_with_other_variables_share_their_code(strategy):
    with strategy.scope():
        variables = [tf.Variable(X * factor) for factor in range(1, 5)]

    def body(outlined, x):
        for variable in variables:
            x = outlined(
                lambda x, variable=variable: tf.nn.softmax(tf.nn.relu(x @ variable) + tf.cumsum(x) * tf.sort(x))
            )(x)
        return x

    compare(strategy, body, X, 1e-4)
    (products_once, size), (products_each, size_each) = (
        products(strategy, tf.function(lambda x, outlined=outlined: body(outlined, x), jit_compile=True))
        for outlined in (outlined_function, not_outlined)
    )
    assert (products_once, products_each) == (1, 4)
    assert size < 0.75 * size_each


def test_feeds_assignments_random_numbers_and_replicas_work_in_it(replicas):
    strategy = replicas(2)
    with strategy.scope():
        total = tf.Variable(0.0)
        infeed = ipu.IPUInfeedQueue(tf.data.Dataset.range(1, 9).map(lambda x: tf.cast(x, tf.float32)))
        outfeed = ipu.IPUOutfeedQueue()

    @outlined_function
    def step(x):
        total.assign_add(cross_replica_sum(x))
        outfeed.enqueue((x + 100 * tf.cast(replication_index(), tf.float32), tf.random.uniform([])))

    @tf.function(jit_compile=True)
    def program():
        ipu.loops.repeat(4, step, [], infeed)

    infeed.initializer  # noqa: B018
    strategy.run(program)
    values, drawn = outfeed.dequeue()
    assert values.numpy().tolist() == [[1, 102], [3, 104], [5, 106], [7, 108]]
    assert len(set(drawn.numpy().flatten())) == 8
    assert total.numpy() == 36


def test_layers_of_keras_and_stages_of_a_pipeline_train_as_without(replicas, pipelined):
    def trained(outlined):
        strategy = replicas(2)
        keras.utils.set_random_seed(0)
        with strategy.scope():
            infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(tf.reshape(tf.range(32.0), [8, 1, 4]) / 32))
            dense = [keras.layers.Dense(4, activation="tanh") for _ in range(3)]
            for layer in dense:
                layer.build([1, 4])

        def stage(layers, x):
            for layer in layers:
                x = outlined(lambda x, layer=layer: layer(x))(x)
            return x

        def last(x):
            x = stage(dense[2:], x)
            return tf.reduce_sum(x * x)

        pipelined(strategy, [lambda x: stage(dense[:2], x), last], infeed, 0.1, repeat_count=2)
        return [weight.numpy() for layer in dense for weight in layer.weights]

    for actual, expected in zip(trained(outlined_function), trained(not_outlined), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_calls_in_loops_and_loops_in_functions_are_differentiated(strategy):
    def training(outlined, x):
        block = outlined(lambda x: tf.tanh(x) * 2)
        sines = {"cond": lambda i, _: i < 2, "body": lambda i, x: (i + 1, tf.sin(x)), "maximum_iterations": 3}
        looping = outlined(lambda x: tf.while_loop(loop_vars=(0, x), **sines)[1])
        total = tf.zeros_like(x)
        for _ in tf.range(2):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = x
                for _ in tf.range(3):
                    y = block(y)
                loss = tf.reduce_sum(looping(y))
            total += tape.gradient(loss, x)
        return total

    compare(strategy, training, X, 1e-5)


def test_gradients_that_go_by_in_it_are_captured_as_in_plain_calls(strategy):
    def captured(outlined, x):
        @outlined
        def inner(x):
            return tf.tanh(capture_upstream_gradients(x**2 / 10, "inner"))

        @outlined
        def around(x):
            return inner(x) * capture_upstream_gradients(2 * x, "around")

        @outlined
        def looping(x):
            y = capture_upstream_gradients(2 * x, "looping")
            for _ in tf.range(3):
                y = y * x
            return y

        with GradientCaptureTape() as tape:
            tape.watch(x)
            y = around(x) + looping(x)
        of_tape = tape.gradient(y, x), tape.captured_gradients
        with GradientCaptureContext() as context:
            y = outlined(lambda x: around(x) ** 2)(x)
            [gradient] = tf.gradients(y, x)
        return of_tape, (gradient, context.captured_gradients)

    compare(strategy, captured, X, 1e-5)


def test_autograph_rewrites_the_function_and_not_what_calls_it(strategy, caplog, monkeypatch):
    """The function may be a lambda, of which AutoGraph once found no source, so that it was not converted."""
    shifted = outlined_function(lambda x: x + 1.0 if tf.reduce_sum(x) > 0.0 else x - 1.0)

    @outlined_function
    def halved(x):
        while tf.reduce_max(x) > 1.0:
            x = x / 2.0
        return x

    def both(x):
        return shifted(x), halved(x)

    monkeypatch.setattr(tf.get_logger(), "propagate", True)
    x = tf.constant([4.0, 3.0])
    for shift, half in (strategy.run(tf.function(both, jit_compile=True), (x,)), tf.function(both)(x), both(x)):
        np.testing.assert_array_equal(shift, [5.0, 4.0])
        np.testing.assert_array_equal(half, [1.0, 0.75])
    assert "AutoGraph" not in caplog.text
    assert outlined_function(lambda x, y=2: x + y)(3) == 5


def test_gradients_of_gradients_are_those_of_plain_calls(strategy):
    with strategy.scope():
        weights = tf.Variable(X[0])

    def twice(outlined, x):
        cube = outlined(lambda x: (x * weights) ** 3)
        y = tf.sin(cube(x)) + cube(2 * x)
        [first] = tf.gradients(y, x)
        return first, *tf.gradients(first, [x, weights])

    def taped(outlined, x):
        """Differentiates a penalty on the gradients of two calls of a layer."""
        layer = outlined(lambda x: tf.tanh(x * weights))
        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(layer(layer(x)))
            penalty = tf.reduce_sum(tape.gradient(y, x) ** 2)
        return penalty, outer.gradient(penalty, weights)

    def shaped(outlined, x):
        """Differentiates operations whose gradients use shapes and permutations, which XLA requires as constants."""

        @outlined
        def attention(x):
            centered = x - tf.reduce_mean(x, -1, keepdims=True)
            return x + tf.nn.softmax(centered @ tf.transpose(x)) @ tf.reshape(tf.tile(x[:1], [2, 1]), [2, -1])

        y = attention(tf.reshape(x, [2, -1]))
        [first] = tf.gradients(y, x)
        return first, *tf.gradients(first, x)

    x = tf.constant([0.5, -0.25, 1.0, 0.125])
    compare(strategy, lambda outlined, x: [twice(outlined, x), taped(outlined, x), shaped(outlined, x)], x, 1e-4)


def test_arguments_of_other_types_are_refused(refused):
    for name, value in (("func", 3), ("unique_sharding", None), ("keep_input_layouts", 1), ("name", 2)):
        refused(TypeError, f"`{name}` must be", outlined_function, **{name: value})
