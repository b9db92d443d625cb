"""`loops.repeat`: the body's arguments and results, and the number of iterations."""

import functools
import logging

import numpy as np
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.loops import repeat


def test_one_carried_value_comes_out_bare_and_several_as_a_list(run):
    singles = [[0], (0,), 0, np.int32(0), tf.constant(0)]

    def program():
        bare = [repeat(10, lambda x: x + 1, inputs) for inputs in singles]
        listed = [
            repeat(3, lambda x, y, z, kind=kind: kind([x + 1, y * 2.0, z]), kind([0, 1.0, True]))
            for kind in (list, tuple)
        ]
        assert [type(value) for value in listed] == [list, list]
        return bare, listed

    bare, listed = run(program)
    for result in bare:
        assert (result.dtype, result.shape, result.numpy()) == (tf.int32, [], 10)
    for several in listed:
        assert [x.dtype for x in several] == [tf.int32, tf.float32, tf.bool]
        assert [x.numpy() for x in several] == [3, 8, True]


def test_values_of_every_kind_go_in_and_come_out(strategy, run):
    with strategy.scope():
        variable = tf.Variable(7)
    assert run(lambda: repeat(3, lambda x: x + 1, [variable])).numpy() == 10
    assert variable.numpy() == 7
    assert repeat(3, lambda x: x + 1, [0]).numpy() == 3  # Eagerly, too.

    def program():
        array = repeat(2, lambda x: x * 2, np.array([1, 2, 3], np.float32))
        constants = repeat(3, lambda x, y: (5, np.float32(2)), [0, 0.0])
        nested = repeat(5, lambda i, total: (i + 1, repeat(i, lambda x: x + 1, total)), [0, 0])
        return array, constants, nested

    array, constants, nested = run(program)
    np.testing.assert_array_equal(array, [4, 8, 12])
    assert [[x.numpy() for x in values] for values in (constants, nested)] == [[5, 2], [5, 10]]


def test_loop_without_carried_values_returns_an_operation(run):
    def program():
        for inputs in (None, [], ()):
            for returned in (lambda: None, list, tf.no_op, lambda: (tf.no_op(), tf.no_op())):
                assert isinstance(repeat(3, returned, inputs), tf.Operation)
        return 1

    assert run(program).numpy() == 1


class Adder:
    def __init__(self, step):
        self.step = step

    def add(self, x):
        return x + self.step

    def __call__(self, x):
        return x + 10 * self.step


def step_with_branch(x):
    if x > 1:
        x = x + 10
    for _ in range(2):
        x = x + 1
    return x


BODIES = {
    Adder(2).add: 6,
    Adder(2): 60,
    functools.partial(lambda step, x: x + step, 3): 9,
    tf.function(lambda x: x + 4): 12,
    lambda x, y=5, *more, **named: x + y: 15,
    lambda *values: values[0] + 6: 18,
    step_with_branch: 26,
}


def test_body_may_be_any_callable_and_branch_on_tensors(run):
    results = run(lambda: [repeat(3, body, [0]) for body in BODIES])
    assert [int(result) for result in results] == [*BODIES.values()]


def test_loop_of_no_iterations_gives_the_inputs(run, infeed_of, numbers):
    queue = infeed_of(numbers)

    def program(*counts):
        return [repeat(n, lambda x, y: x + y + 1, [5], queue) for n in (0, -1, -5, *counts)]

    assert [int(result) for result in run(program, *map(tf.constant, (0, -1, -5)))] == [5] * 6
    assert run(queue._dequeue).numpy() == 0


def test_number_of_iterations_may_be_of_any_integer_type_and_come_with_the_run(strategy):
    types = [4, np.int64(4), np.uint8(4), tf.constant(4), tf.constant(4, tf.int64), tf.constant(4, tf.uint8)]
    traces = []

    @tf.function(jit_compile=True)
    def program(n, counts):
        traces.append(1)
        return repeat(n, lambda x: x + 2, 0), [repeat(n, lambda x: x + 1, [5]) for n in (*types, *counts)]

    for n in (3, 0, 7):
        by_run, other_results = strategy.run(program, (tf.constant(n), types))
        assert by_run.numpy() == 2 * n
        assert [int(result) for result in other_results] == [9] * 12
    assert len(traces) == 1


CALLED = "Supplied loop body function cannot be called with the specified inputs. You specified {} inputs, but the body"
RESULTS = "IPU loop body must return zero or more Tensor values followed by zero or more Operations"
MISMATCH = r"Mismatch between input types and output types for loop body: \['int32', 'int32'\] vs {}\. The body must"
WHOLE = "`n` must be a whole number of iterations, but is"
BITS = r"`n` must be from -9223372036854775808 to 9223372036854775807, but is {}"


def same(*values):
    return values


def test_loop_that_cannot_be_is_refused(run, refused):
    for arguments, kind, message in (
        *(((n, same, [5]), TypeError, WHOLE) for n in (1.5, True, None, "3", tf.constant(1.0), np.bool_(True))),
        *(((n, same, [5]), ValueError, BITS.format(n)) for n in (2**63, -(2**63) - 1, np.uint64(2**63))),
        (([3], same, [5]), ValueError, "`n` must be a scalar, but has shape"),
        ((np.array([1, 2]), same, [5]), ValueError, "`n` must be a scalar, but has shape"),
        ((3, lambda x, y: x, [0]), TypeError, CALLED.format(1) + r" takes `\(x, y\)`"),
        ((3, lambda x: x, [0, 1]), TypeError, CALLED.format(2) + r" takes `\(x\)`"),
        ((3, lambda x: x), TypeError, CALLED.format(0) + r" takes `\(x\)`"),
        ((3, None, [0]), TypeError, "Supplied loop body function cannot be called .* since it is None"),
        ((3, 3, [0]), TypeError, "Supplied loop body function cannot be called .* since it is 3"),
        *(
            ((3, same, inputs), TypeError, "`inputs` must be a tensor, or a list or tuple of them, but holds")
            for inputs in ({"a": 5}, [{"a": 5}], [None], [object()])
        ),
        ((3, same, [0], tf.data.Dataset.range(3)), TypeError, r"`infeed_queue` must be .*`IPUInfeedQueue\(dataset\)`"),
        ((3, lambda x: (tf.no_op(), x), [0]), ValueError, RESULTS),
        ((3, lambda x, y: (x, tf.no_op(), y), [0, 1]), ValueError, RESULTS),
        ((3, lambda x, y: (x, tf.cast(y, tf.float32)), [0, 1]), TypeError, MISMATCH.format(r"\['int32', 'float32'\]")),
        ((3, lambda x, y: x, [0, 1]), TypeError, MISMATCH.format(r"\['int32'\]")),
        ((3, lambda x, y: None, [0, 1]), TypeError, MISMATCH.format(r"\[\]")),
        ((3, lambda x, y: tf.no_op(), [0, 1]), TypeError, MISMATCH.format(r"\[\]")),
        ((3, lambda x, y: (x, y, x), [0, 1]), TypeError, MISMATCH.format(r"\['int32', 'int32', 'int32'\]")),
        ((3, lambda x: tf.concat([x, x], 0), [[5]]), ValueError, r"shape \(1,\), but has shape \(2,\) after one"),
        *(
            (
                (3, lambda x, returned=returned: returned, [0]),
                TypeError,
                "what `body` returns must be a tensor, .* but holds",
            )
            for returned in ({"a": 1}, object(), [{"a": 1}])
        ),
    ):
        refused(kind, message, run, lambda: repeat(*arguments))  # noqa: B023


def test_body_that_does_not_take_the_element_is_refused_and_not_called(run, refused, infeed_of, numbers):
    pattern = r"You specified 1 inputs and {} additional inputs from infeed{}, but the body takes `\({}\)`"
    calls = []
    for dataset, body, count, named, takes in (
        (numbers, lambda x: calls.append(x), 1, "", "x"),
        (numbers.map(lambda x: (x, x)), lambda x, y: calls.append(x), 2, "", "x, y"),
        (numbers.map(lambda x: {"a": x, "b": x}), lambda x, a: calls.append(x), 2, r" \(a, b by name\)", "x, a"),
    ):
        queue = infeed_of(dataset)
        message = "Supplied loop body.*" + pattern.format(count, named, takes)
        refused(TypeError, message, run, lambda: repeat(3, body, [0], queue))  # noqa: B023
        assert not calls
        assert not queue.dequeued


def test_version_of_while_loops_is_noted_and_changes_nothing(run, refused, caplog):
    def loop(version):
        return lambda: repeat(3, lambda x: x + 1, [0], use_while_v1=version)

    with caplog.at_level(logging.WARNING):
        assert run(loop(True)).numpy() == 3
        assert "use_while_v1" not in caplog.text
        assert run(loop(False)).numpy() == 3
    assert "`use_while_v1=False` makes no difference" in caplog.text
    refused(TypeError, "`use_while_v1` must be True or False, but is 1", run, loop(1))


def test_operations_that_the_body_returns_run_in_each_iteration(strategy, run):
    queue = ipu.IPUOutfeedQueue()
    with strategy.scope():
        variable = tf.Variable(0)

    traces = []

    def body(x):
        traces.append(1)
        total = variable.assign_add(x)
        return x + 1, queue.enqueue((x, total)), tf.group(variable.assign_add(100, read_value=False))

    assert run(lambda: repeat(4, body, [0])).numpy() == 4
    x, total = queue.dequeue()
    np.testing.assert_array_equal(x, [0, 1, 2, 3])
    np.testing.assert_array_equal(total, [0, 101, 203, 306])
    assert variable.numpy() == 406
    assert len(traces) == 1

    def program():
        repeat(5, lambda: variable.assign_add(1).op)
        return variable.read_value()

    assert run(program).numpy() == 411


# A graph of TensorFlow 1 only runs operations that others depend on.
def test_operations_are_control_dependencies_of_their_iteration():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.Variable(0, use_resource=True)
        result = repeat(4, lambda x: (x + 1, tf.group(variable.assign_add(x))), [0])
        operation = repeat(3, lambda: tf.group(variable.assign_add(100)))
        session.run(variable.initializer)
        assert session.run(result) == 4
        assert session.run(variable) == 6
        assert session.run(operation) is None
        assert session.run(variable) == 306
