"""Liveness, memory and the order of operations of a program, and the number of iterations of its loops."""

import dataclasses

import pytest
import tensorflow as tf

from tensorflow_ipu.analysis.machine.hlo import read
from tensorflow_ipu.analysis.machine.liveness import frugal_order, peak_of
from tensorflow_ipu.analysis.machine.memory import _thinned
from tensorflow_ipu.machine import GC200

KIB = tf.zeros([256])  # 1 KiB of float32.


def chain(x):
    return tf.exp(tf.exp(tf.exp(tf.reverse(x, [0]))))


def used_later(x):
    first = tf.reverse(x, [0])
    second = tf.reverse(tf.sin(first), [0])  # `first` is read below, so the sine cannot overwrite it.
    return second + first


def loop(x):
    x = tf.reverse(x, [0])
    for _ in tf.range(10):
        x = tf.reverse(x, [0]) + x
    return x


def stack(x):
    stack = tf.TensorArray(tf.float32, 10)
    for i in tf.range(10):
        stack = stack.write(i, tf.reverse(x, [0]))
    return stack.stack()


def transposed(x):
    return tf.exp(tf.transpose(tf.reverse(tf.reshape(x, [16, 16]), [0])))


def cast_that_a_reduction_reads(x):
    return tf.reduce_sum(tf.cast(tf.reverse(x, [0]), tf.float32))


def choice_to_update(x):  # Like an update that is skipped if gradients are not finite.
    return tf.cond(tf.reduce_sum(x) > 0.0, lambda: (x - 1.0, 1.0), lambda: (x, 0.0))


def choice_of_two(x):
    return tf.cond(tf.reduce_sum(x) > 0.0, lambda: tf.reverse(x, [0]), lambda: tf.exp(tf.reverse(x, [0])))


@pytest.mark.parametrize(
    ("function", "argument", "low", "high"),
    [
        (chain, KIB, 1024, 1024),
        (used_later, KIB, 3 * 1024, 3 * 1024),
        (lambda x: x + 1.0, KIB, 0, 0),  # The result overwrites the parameter, which has no later reader.
        (loop, KIB, 2 * 1024, 3 * 1024),  # The loop's value, and the value that an iteration computes.
        (stack, KIB, 10 * 1024, 13 * 1024),
        (transposed, KIB, 1024, 1024),
        (cast_that_a_reduction_reads, tf.zeros([512], tf.float16), 0, 1024 + 16),
        (choice_to_update, KIB, 0, 64),
        (choice_of_two, KIB, 1024, 2 * 1024 + 64),
    ],
)
def test_what_works_in_one_place_counts_once(hlo, function, argument, low, high):
    assert low <= peak_of(read(hlo(function, argument)), GC200, 0.6).bytes <= high


def test_variables_and_arguments_are_held_all_the_time_and_the_largest_are_named(report):
    weights = tf.Variable(tf.zeros([100, 100]))
    made = report(lambda x: x @ weights, tf.zeros([8, 100]))
    assert made.memory.variables == 4 * (100 * 100 + 8 * 100)

    def function(x):
        with tf.name_scope("here"):
            return tf.reverse(x, [0])

    (name, size), *_ = report(function, tf.zeros([2**20])).memory.largest
    assert "here/Reverse" in name
    assert size == 4 * 2**20


def test_verdicts(report):
    memory = report(lambda x: x @ x, tf.zeros([64, 64])).memory
    assert memory.verdict == "fits"
    assert memory.low < memory.high < memory.capacity
    size = memory.capacity
    assert dataclasses.replace(memory, variables=int(1.3 * size)).verdict == "does not fit"
    assert dataclasses.replace(memory, variables=int(0.95 * size)).verdict == "may fit"
    made = report(lambda x: tf.reverse(x, [0]), tf.TensorSpec([240 * 2**20]))
    assert made.fits is False
    assert "does not fit" in str(made)


def test_the_profile_has_the_peak_runs_loops_once_and_is_thinned(report):
    memory = report(lambda x: tf.concat([loop(x), x], 0), KIB).memory
    places, sizes = zip(*memory.liveness, strict=True)
    assert list(places) == sorted(places)
    assert max(sizes) == memory.data
    assert len(places) < 30
    points = _thinned([*range(1000), 5000, *range(1000)])
    assert len(points) <= 400
    assert (1000, 5000) in points
    assert _thinned([]) == ()


ROWS, WIDTH = 512, 64
INPUT = 4 * ROWS * WIDTH  # The bytes of a layer's input and of its output. Inside, a layer is four times as wide.


def backward_pass(hlo, layers, wrapped):
    """Returns a program that adds the gradients of `layers` layers to sums. The sums and the weights are arguments."""

    @wrapped
    def layer(x, first, second):
        return x + tf.tanh(tf.tanh(x @ first) * 2.0) @ second

    def program(x, weights, sums):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            for of_layer in weights:
                x = layer(x, *of_layer)
            loss = tf.reduce_sum(x * x)
        return tf.nest.map_structure(tf.add, sums, tape.gradient(loss, weights))

    weights = [(tf.zeros([WIDTH, 4 * WIDTH]), tf.zeros([4 * WIDTH, WIDTH]))] * layers
    return read(hlo(program, tf.zeros([ROWS, WIDTH]), weights, weights))


def test_layers_that_recompute_are_in_memory_one_at_a_time(hlo):
    few, more = (peak_of(backward_pass(hlo, layers, tf.recompute_grad), GC200, 0.1).bytes for layers in (2, 4))
    # Each additional layer stores its input. Values inside it are freed.
    assert few < more <= few + 2.1 * INPUT
    without_recomputation = [
        peak_of(backward_pass(hlo, layers, lambda layer: layer), GC200, 0.1).bytes for layers in (2, 4)
    ]
    assert without_recomputation[1] >= without_recomputation[0] + 2 * 8 * INPUT


def test_an_order_has_all_operations_each_behind_its_operands(hlo):
    program = backward_pass(hlo, 3, tf.recompute_grad)
    order = frugal_order(program)
    assert set(order) == set(program.operations)
    assert len(order) == len(program.operations)
    places = {operation: index for index, operation in enumerate(order)}
    assert all(places[operand] < places[operation] for operation in order for operand in operation.operands)


X = tf.zeros([4, 4])


def products(report):
    """Returns the counts of a report's matrix products."""
    return [row.count for row in report.operations if row.kind == "dot"]


def test_loops_of_constant_bounds_are_counted(report):
    bounds = [(0, 25, 1), (3, 25, 1), (0, 25, 4), (10, 0, -1), (10, 0, -3), (5, 5, 1)]

    def function(x):
        for limits in bounds:
            for _ in tf.range(*limits):
                x = x @ x
        return x

    assert products(report(function, X)) == [25, 22, 7, 10, 4]


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
    notes = [line for line in unknown.assumptions if line.startswith("loop `")]
    assert len(notes) == 1
    assert "figures are for one iteration" in notes[0]
    name = notes[0].split("`")[1]
    assert products(report(function, X, trip_counts={name: 40})) == [40]
    assert products(report(function, X, trip_counts={"*": 41})) == [41]
    with pytest.raises(ValueError, match="`trip_counts` names `nowhere`, but the program has no loop"):
        report(function, X, trip_counts={"nowhere": 2})


def test_a_loop_without_end_is_told(report):
    def function(x):
        return tf.while_loop(lambda y: tf.reduce_sum(y) < 1.0, lambda y: y @ y, (x,))[0]

    assert any(line.startswith("loop `") for line in report(function, X).assumptions)
