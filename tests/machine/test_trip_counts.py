"""How often loops run, read from the program."""

import pytest
import tensorflow as tf

X = tf.zeros([4, 4])


def products(report):
    """How often the products of matrices run."""
    return [row.count for row in report.operations if row.kind == "dot"]


@pytest.mark.parametrize(
    ("begin", "end", "step", "count"),
    [(0, 25, 1, 25), (3, 25, 1, 22), (0, 25, 4, 7), (10, 0, -1, 10), (10, 0, -3, 4), (5, 5, 1, 0)],
)
def test_loops_of_constant_bounds_are_counted(report, begin, end, step, count):
    def function(x):
        for _ in tf.range(begin, end, step):
            x = x @ x
        return x

    assert products(report(function, X)) == ([count] if count else [])


def lower_of_two_bounds(x):
    return tf.while_loop(lambda i, _: i < 25, lambda i, y: (i + 1, y @ y), (0, x), maximum_iterations=7)[1]


def nested(x):
    for _ in tf.range(3):
        x = x @ x
        for _ in tf.range(5):
            x = x @ x
    return x


def bound_that_an_outer_loop_carries(x):
    inner = tf.constant(6) * 2
    for _ in tf.range(3):
        for _ in tf.range(inner):
            x = x @ x
    return x


def condition_on_data_and_another_bound(x):
    def both(i, y):
        return tf.logical_and(i < 9, tf.reduce_sum(y) < 1.0)

    return tf.while_loop(both, lambda i, y: (i + 1, y @ y), (0, x))[1]


def gradient_that_goes_back_as_often(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.while_loop(lambda i, _: i < 7, lambda i, y: (i + 1, tf.tanh(y @ x)), (0, x), maximum_iterations=9)[1]
    return tape.gradient(y, x)


@pytest.mark.parametrize(
    ("function", "counts"),
    [
        (lower_of_two_bounds, [7]),
        (nested, [3, 15]),
        (bound_that_an_outer_loop_carries, [36]),
        (condition_on_data_and_another_bound, [9]),
        (gradient_that_goes_back_as_often, [7, 7, 7]),
    ],
)
def test_loops_are_counted_by_what_is_known_of_them(report, function, counts):
    assert sorted(products(report(function, X))) == counts


def test_a_count_that_only_running_tells_is_told_and_may_be_given(report):
    def function(x):
        for _ in tf.range(tf.cast(tf.reduce_sum(x), tf.int32)):
            x = x @ x
        return x

    unknown = report(function, X)
    assert products(unknown) == [1]
    told = [line for line in unknown.assumptions if line.startswith("loop `")]
    assert len(told) == 1
    assert "figures are for one iteration" in told[0]
    name = told[0].split("`")[1]
    assert products(report(function, X, trip_counts={name: 40})) == [40]
    assert products(report(function, X, trip_counts={"*": 41})) == [41]
    with pytest.raises(ValueError, match="`trip_counts` names `nowhere`, and the program has no loop"):
        report(function, X, trip_counts={"nowhere": 2})


def test_a_loop_without_end_is_told(report):
    def function(x):
        return tf.while_loop(lambda y: tf.reduce_sum(y) < 1.0, lambda y: y @ y, (x,))[0]

    assert any(line.startswith("loop `") for line in report(function, X).assumptions)
