"""The number of iterations of a loop, found from its graph, is the same as in a run, or None."""

import functools
import operator

import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.optimizers import _loop_check


def loops_of(graph):
    """Returns the loops of a graph, outer loops first."""
    loops = [op for op in graph.get_operations() if op.type in _loop_check.LOOPS]
    return loops + [inner for loop in loops for inner in loops_of(_loop_check.body_of(loop))]


def counts(function, *specs):
    concrete = tf.function(function).get_concrete_function(*specs)
    return [_loop_check.trip_count(loop) for loop in loops_of(concrete.graph)]


def test_a_range_has_the_number_of_its_elements():
    for arguments in ((7,), (0,), (2, 9), (2, 9, 3), (9, 2, -2), (4, 4), (tf.constant(6, tf.int64),)):

        def function():
            total = 0
            for _ in tf.range(*arguments):  # noqa: B023
                total += 1
            return total

        assert counts(function) == [tf.function(function)()]


def test_a_while_loop_counts_up_or_down_to_its_limit():
    def looped(compare, first, step, limit):
        return tf.while_loop(lambda i, _: compare(i, limit), lambda i, n: (i + step, n + 1), (tf.constant(first), 0))

    for compare in (operator.lt, operator.le, operator.gt, operator.ge):
        for arguments in ((0, 2, 5), (5, -2, 0), (3, 1, 3)):
            value, step, limit = arguments
            expected = 0
            while expected < 20 and compare(value, limit):
                expected, value = expected + 1, value + step
            counted = counts(functools.partial(looped, compare, *arguments))
            assert counted == [None if expected == 20 else expected]


def test_the_loops_of_the_package_have_their_numbers_and_constants_from_around_them():
    outside = tf.constant(3)

    def function():
        total = 0
        for _ in tf.range(outside * 2):
            for _ in tf.range(outside):
                total += 1
        by_repeat = ipu.loops.repeat(12, lambda x: x + 1.0, [0.0])
        by_while = ipu.loops.while_loop(lambda i: i < 9, lambda i: i + 2, [0])
        limited = ipu.loops.while_loop(lambda i: i < 90, lambda i: i + 2, [0], maximum_iterations=4)
        return total, by_repeat, by_while, limited

    assert sorted(counts(function)) == [3, 4, 5, 6, 12]


def carrying_its_limit():
    return tf.while_loop(lambda i, limit: i < limit, lambda i, limit: (i + 3, limit), (tf.constant(0), tf.constant(10)))


def by_two_conditions():
    return tf.while_loop(lambda i, j: (i < 10) & ((j < 4) | (j < 6)), lambda i, j: (i + 1, j + 2), (0, 0))


def endless():
    return tf.while_loop(lambda _: True, lambda i: i + 1, [tf.constant(0)])


def until_break():
    x = 0
    for i in tf.range(9):
        x += i
        if x > 7:
            break
    return x


def halving():
    return tf.while_loop(lambda x: x > 1, lambda x: x // 2, [tf.constant(64)])


def changing_steps():
    return tf.while_loop(lambda i, _: i < 20, lambda i, step: (i + step, step + 1), (tf.constant(0), tf.constant(1)))


def either():
    return tf.while_loop(lambda i: tf.logical_or(i < 3, i > 1), lambda i: i + 1, [tf.constant(0)])


def test_a_number_is_known_where_it_is_not_the_run_that_tells_it():
    assert [counts(carrying_its_limit), counts(by_two_conditions)] == [[4], [3]]
    for function in (endless, either, until_break, halving, changing_steps):
        assert counts(function) == [None], function.__name__


def test_a_number_that_is_an_argument_is_known_by_inputs_of_the_loop():
    for iterations, first in ((7, 0), (3, 0), (0, 0), (-2, 0), (9, 4)):
        with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
            n = tf.compat.v1.placeholder(tf.int32, [])
            _, total = tf.while_loop(lambda i, _: i < n, lambda i, total: (i + 1, total + 1), (first, 0))  # noqa: B023
            (loop,) = loops_of(graph)
            count = _loop_check.trip_count(loop)
            assert isinstance(count, _loop_check.AtRun)
            limits = [loop.inputs[index] + added for index, added in count.limits]
            *limit_values, expected = session.run([*limits, total], {n: iterations})
        assert max(0, *limit_values) == expected
