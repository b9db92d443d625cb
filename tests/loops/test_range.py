"""Python loops over `tf.range` and `while` over tensors, which run on the device as `repeat` does."""

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu


@pytest.fixture
def iterator_of(strategy):
    """Returns a function that creates an iterator for programs: `iterator_of(dataset)`."""

    def make(dataset):
        with strategy.scope():
            return iter(dataset)

    return make


@pytest.mark.parametrize("jit_compile", [None, False, True])
def test_loop_takes_and_gives_an_element_an_iteration(jit_compile, strategy, iterator_of, numbers):
    queue = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=jit_compile)
    def program(iterator, n):
        total = 0
        for i in tf.range(n):
            x = next(iterator)
            queue.enqueue((i, x * x))
            total += x
        return total

    iterator = iterator_of(numbers)
    assert strategy.run(program, (iterator, tf.constant(4))).numpy() == 6
    i, square = queue.dequeue()
    np.testing.assert_array_equal(i, [0, 1, 2, 3])
    np.testing.assert_array_equal(square, [0, 1, 4, 9])
    # The second run continues with the data. A loop of no iterations takes no element.
    assert strategy.run(program, (iterator, tf.constant(0))).numpy() == 0
    assert strategy.run(program, (iterator, tf.constant(2))).numpy() == 9
    np.testing.assert_array_equal(queue.dequeue()[1], [16, 25])


def test_branches_take_and_enqueue_where_they_run_and_of_several_queues(run, iterator_of, numbers):
    queues = ipu.IPUOutfeedQueue(), ipu.IPUOutfeedQueue(ipu.IPUOutfeedMode.LAST)

    def program(first, second):
        last = 0
        for i in tf.range(6):
            element = next(second)
            if i % 2 == 0:
                last = next(first)
                queues[0].enqueue({"last": last, "own": element["pair"]["a"]})
            queues[1].enqueue(element["x"])
        return last, next(first)

    structures = numbers.map(lambda x: {"x": -x, "pair": {"a": tf.fill([2], x)}})
    assert [x.numpy() for x in run(program, iterator_of(numbers), iterator_of(structures))] == [2, 3]
    taken = queues[0].dequeue()
    np.testing.assert_array_equal(taken["last"], [0, 1, 2])
    np.testing.assert_array_equal(taken["own"], [[0, 0], [2, 2], [4, 4]])
    assert queues[1].dequeue().numpy() == -5


def test_break_continue_and_while_over_tensors_leave_the_data_where_they_are(run, iterator_of, numbers):
    def program(iterator):
        total = x = 0
        for _ in tf.range(100):
            x = next(iterator)
            if x == 2:
                continue
            if x == 5:
                break
            total += x
        count = tf.constant(0)
        while x < 9:
            x = next(iterator)
            count += 1
        return total, x, count

    iterator = iterator_of(numbers)
    assert [x.numpy() for x in run(program, iterator)] == [0 + 1 + 3 + 4, 9, 4]
    assert run(lambda iterator: next(iterator), iterator).numpy() == 10


# XLA required a static length of the inner range, although nothing uses it.
def test_inner_loop_may_run_as_often_as_the_outer_one_says(run, iterator_of, numbers):
    def program(iterator):
        total = 0
        for _ in range(2):
            total += 100 * next(iterator)
        for i in tf.range(next(iterator) - 2, next(iterator) + 1):
            for _ in tf.range(i):
                total += next(iterator)
        return total

    # The outer loop runs over 0, 1, 2 and 3.
    assert run(program, iterator_of(numbers)).numpy() == 100 + 4 + (5 + 6) + (7 + 8 + 9)


def test_range_is_a_tensor_as_ever_and_may_have_a_start_and_a_step(run):
    queues = [ipu.IPUOutfeedQueue() for _ in range(3)]
    bounds = [(2, 7, 1), (2, 7, 2), (7, 2, -1)]

    def program(x, ranges):
        steps = tf.range(4)
        total = 0
        for i in steps:
            total += i * x
        for queue, (start, limit, step) in zip(queues, ranges, strict=True):
            for i in tf.range(start, limit, step):
                queue.enqueue(i)
        return total, steps, tf.range(3)

    total, steps, literal_range = run(program, tf.constant(10), [tuple(map(tf.constant, bound)) for bound in bounds])
    assert total.numpy() == 60
    np.testing.assert_array_equal(steps, [0, 1, 2, 3])
    np.testing.assert_array_equal(literal_range, [0, 1, 2])
    for queue, bound in zip(queues, bounds, strict=True):
        np.testing.assert_array_equal(queue.dequeue(), range(*bound))


def test_iterating_over_an_iterator_in_a_program_says_what_to_do(run, iterator_of, numbers, refused):
    def program(iterator):
        total = 0
        for x in iterator:
            total += x
        return total

    refused(NotImplementedError, r"`tf.range\(n\)` and call `next\(iterator\)`", run, program, iterator_of(numbers))
