"""`loops.repeat` with an infeed, and gradients through the loop and inside of its body."""

import numpy as np
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.loops import repeat


def test_element_comes_after_the_carried_values_or_by_name(run, infeed_of, numbers):
    pairs = infeed_of(numbers.map(lambda x: (x, tf.cast(x, tf.float32) / 2)))
    named = infeed_of(numbers.map(lambda x: {"b": x, "a": 10 * x}))
    in_tuples = infeed_of(numbers.map(lambda x: ({"b": x, "a": 10 * x},)))

    def program():
        by_name = [repeat(3, lambda x, a, b: x + a - b, 0, queue) for queue in (named, in_tuples)]
        return repeat(4, lambda total, half, x, y: (total + x, half + y), [100, 0.0], pairs), by_name

    assert [x.numpy() for x in tf.nest.flatten(run(program))] == [106, 3, 27, 27]


def test_second_run_goes_on_where_the_first_left_the_data(strategy, infeed_of, numbers):
    queue = infeed_of(numbers)
    program = tf.function(lambda n: repeat(n, lambda x, y: x + y, [0], queue), jit_compile=True)
    assert [int(strategy.run(program, (tf.constant(n),))) for n in (3, 1, 0, 4)] == [3, 3, 0, 4 + 5 + 6 + 7]
    eager_loop = tf.function(lambda: repeat(2, lambda x, y: x + y, [0], queue))
    assert strategy.run(eager_loop).numpy() == 8 + 9
    program_of_queue = tf.function(lambda queue: repeat(3, lambda x, y: x + y, [0], queue), jit_compile=True)
    first, second = infeed_of(numbers), infeed_of(numbers.skip(10))
    assert [int(strategy.run(program_of_queue, (queue,))) for queue in (first, second, first)] == [3, 33, 12]


def test_queue_that_was_not_initialized_or_is_in_no_program_is_refused(run, refused, numbers):
    queue = ipu.IPUInfeedQueue(numbers)
    error, loop = tf.errors.FailedPreconditionError, lambda: repeat(3, lambda x, y: x + y, [0], queue)
    refused(error, "not initialized", run, loop)
    queue.initializer  # noqa: B018
    refused(error, "runs only in a compiled program", loop)


def test_loops_nest_and_share_a_queue_in_program_order(run, infeed_of, numbers):
    source, sink = infeed_of(numbers), ipu.IPUOutfeedQueue()

    def outer(total, x):
        inner = repeat(2, lambda inside, y: inside * 100 + y, [0], source)
        return total + inner, sink.enqueue((x, inner))

    assert run(lambda: repeat(3, outer, [0], source)).numpy() == 102 + 405 + 708
    x, inner = sink.dequeue()
    np.testing.assert_array_equal(x, [0, 3, 6])
    np.testing.assert_array_equal(inner, [102, 405, 708])


# XLA cannot compile the gradient of a loop without a limit, since it does not know how many values to store.
def test_loops_of_a_known_number_of_iterations_have_gradients_nested_and_over_a_range(run):
    def program(x):
        results = []
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = repeat(2, lambda a: repeat(3, lambda b: b * x, [a]), [x])
            for _ in tf.range(3):
                y = y * x
        results.append(tape.gradient(y, x))
        for n in (3, tf.constant(3), np.int64(3)):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = repeat(n, lambda value: value * x, [x])
            results += [y, tape.gradient(y, x)]
        return results

    assert [value.numpy() for value in run(program, tf.constant(2.0))] == [10 * 2**9, *[16, 32] * 3]


def test_gradient_of_a_loop_with_data_and_variables_is_that_of_tensorflow(strategy, run, infeed_of):
    rows = np.random.default_rng(0).normal(size=[4, 3]).astype(np.float32)
    with strategy.scope():
        weight = tf.Variable([1.0, -2.0, 0.5])
    queue = infeed_of(tf.data.Dataset.from_tensor_slices(rows))

    def program():
        with tf.GradientTape() as tape:
            loss = repeat(4, lambda total, row: tf.tanh(total + tf.reduce_sum(row * weight)), [0.0], queue)
        return tape.gradient(loss, weight)

    plain_weight = tf.constant([1.0, -2.0, 0.5])
    with tf.GradientTape() as tape:
        tape.watch(plain_weight)
        total = tf.constant(0.0)
        for row in rows:
            total = tf.tanh(total + tf.reduce_sum(row * plain_weight))
    np.testing.assert_allclose(run(program), tape.gradient(total, plain_weight), rtol=1e-5)


def test_gradients_are_taken_in_the_body_and_applied_there(strategy, run):
    with strategy.scope():
        weight = tf.Variable(4.0)
        optimizer = tf.keras.optimizers.SGD(0.25)

    def body():
        with tf.GradientTape() as tape:
            loss = weight * weight
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

    def program():
        repeat(3, body)

    run(program)
    assert weight.numpy() == 0.5
