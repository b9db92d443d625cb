"""`loops.repeat` with an infeed: where the element goes, the order of elements, and what the next run gets."""

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.loops import repeat


def test_element_comes_after_the_carried_values(run, infeed_of, numbers):
    queue = infeed_of(numbers.map(lambda x: (x, tf.cast(x, tf.float32) / 2)))
    result = run(lambda: repeat(4, lambda total, half, x, y: (total + x, half + y), [100, 0.0], queue))
    assert [x.numpy() for x in result] == [106, 3]


def test_element_that_is_a_dict_comes_by_name(run, infeed_of, numbers):
    def body(x, a, b):
        return x + a - b

    def program(queue):
        return repeat(3, body, 0, queue)

    for dataset in (numbers.map(lambda x: {"b": x, "a": 10 * x}), numbers.map(lambda x: ({"b": x, "a": 10 * x},))):
        assert run(program, infeed_of(dataset)).numpy() == 27


def test_second_run_goes_on_where_the_first_left_the_data(strategy, infeed_of, numbers):
    queue = infeed_of(numbers)
    program = tf.function(lambda n: repeat(n, lambda x, y: x + y, [0], queue), jit_compile=True)
    assert [int(strategy.run(program, (tf.constant(n),))) for n in (3, 1, 0, 4)] == [3, 3, 0, 4 + 5 + 6 + 7]
    other = tf.function(lambda: repeat(2, lambda x, y: x + y, [0], queue))
    assert strategy.run(other).numpy() == 8 + 9
    given = tf.function(lambda queue: repeat(3, lambda x, y: x + y, [0], queue), jit_compile=True)
    first, second = infeed_of(numbers), infeed_of(numbers.skip(10))
    assert [int(strategy.run(given, (queue,))) for queue in (first, second, first)] == [3, 33, 12]


def test_queue_that_was_not_initialized_or_is_in_no_program_is_refused(run, numbers):
    queue = ipu.IPUInfeedQueue(numbers)
    with pytest.raises(tf.errors.FailedPreconditionError, match="not initialized"):
        run(lambda: repeat(3, lambda x, y: x + y, [0], queue))
    queue.initializer  # noqa: B018
    with pytest.raises(tf.errors.FailedPreconditionError, match="runs in a compiled program alone"):
        repeat(3, lambda x, y: x + y, [0], queue)


def test_first_example_of_the_guide_gives_the_figures_that_ipu_users_know(strategy, configure):
    configure(1)
    dataset = tf.data.Dataset.from_tensors(tf.constant(1.0, shape=[800])).map(lambda x: [x, 2 * x]).repeat()
    infeed, outfeed = ipu.IPUInfeedQueue(dataset), ipu.IPUOutfeedQueue()

    def body(counter, x1, x2):
        outfeed.enqueue({"d1": x1 + x2 + tf.cast(counter, tf.float32), "d2": x1 - x2})
        return counter + 1

    @tf.function(jit_compile=True)
    def program():
        return repeat(10, body, [0], infeed)

    with strategy.scope():
        infeed.initializer  # noqa: B018
        assert strategy.run(program).numpy() == 10
    result = outfeed.dequeue()
    assert (result["d1"].shape, result["d2"].shape) == ([10, 800], [10, 800])
    np.testing.assert_array_equal(result["d1"], np.tile(np.arange(3.0, 13.0)[:, None], [1, 800]))
    np.testing.assert_array_equal(result["d2"], np.full([10, 800], -1.0))


def test_loops_nest_and_share_a_queue_in_program_order(run, infeed_of, numbers):
    source, sink = infeed_of(numbers), ipu.IPUOutfeedQueue()

    def outer(total, x):
        inner = repeat(2, lambda inside, y: inside * 100 + y, [0], source)
        return total + inner, sink.enqueue((x, inner))

    assert run(lambda: repeat(3, outer, [0], source)).numpy() == 102 + 405 + 708
    x, inner = sink.dequeue()
    np.testing.assert_array_equal(x, [0, 3, 6])
    np.testing.assert_array_equal(inner, [102, 405, 708])
