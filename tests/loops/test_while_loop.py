"""`loops.while_loop`: its condition, its limit, and its common behaviour with `repeat`."""

import logging

import numpy as np
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.loops import repeat, while_loop


def test_loop_runs_while_the_condition_holds_or_to_its_limit(run):
    singles = [[0], (0,), 0, np.int32(0)]
    limits = [4, np.int64(4), tf.constant(4), tf.constant(4, tf.int64), 0, -1, 100, None]

    def condition(x):
        if x > 20:  # noqa: SIM108  (AutoGraph rewrites statements.)
            below = x < 30
        else:
            below = True
        return below

    def body(x):
        if x % 2 == 0:
            x = x + 3
        return x + 2

    def program(*limit_tensors):
        bare = [while_loop(lambda x: x < 10, lambda x: x + 3, inputs) for inputs in singles]
        several = while_loop(lambda x, y: y < 20.0, lambda x, y: (x + 1, y * 2.0), [0, 1.0])
        assert isinstance(several, list)
        limited = [
            while_loop(lambda x: x < 10, lambda x: x + 1, [0], maximum_iterations=n) for n in (*limits, *limit_tensors)
        ]
        return bare, several, while_loop(condition, body, [0]), limited

    bare, several, branching, limited = run(program, *limits[:4])
    for result in bare:
        assert (result.dtype, result.shape, result.numpy()) == (tf.int32, [], 12)
    assert [x.numpy() for x in several] == [5, 32]
    assert branching.numpy() == 31
    assert [int(result) for result in limited] == [4, 4, 4, 4, 0, 0, 10, 10, 4, 4, 4, 4]


def test_loop_of_no_iterations_gives_the_inputs(run, infeed_of, numbers):
    queue = infeed_of(numbers)
    conditions = [lambda x: False, lambda y: y > 5, lambda z: np.bool_(False)]  # AutoGraph distinguishes them by names.
    results = run(lambda: [while_loop(condition, lambda x, y: x + y + 1, [5], queue) for condition in conditions])
    assert [int(result) for result in results] == [5] * 3
    assert run(queue._dequeue).numpy() == 0


def test_loop_without_carried_values_goes_by_what_it_changes(strategy, run):
    with strategy.scope():
        variable = tf.Variable(0)

    def program():
        result = while_loop(lambda: variable < 5, lambda: variable.assign_add(2).op)
        assert isinstance(result, tf.Operation)
        return variable.read_value()

    assert run(program).numpy() == 6


def test_limit_that_only_the_run_knows_may_be_an_int64(strategy):
    @tf.function(jit_compile=True)
    def program(limit):
        return while_loop(lambda x: x < 10, lambda x: x + 1, [0], maximum_iterations=limit)

    results = [int(strategy.run(program, (tf.constant(limit, tf.int64),))) for limit in (3, 2**32, 2**63 - 1)]
    assert results == [3, 10, 10]  # 2**32 would be 0 if it was cut to 32 bits.


WHOLE = "`maximum_iterations` must be a whole number of iterations, but is"
BOUND = "`maximum_iterations` must be from .* to 2147483647, but is {}"
TRUTH = "`condition` must return a bool scalar, but returns a tensor of type {}"


def below(x):
    return x < 3


# XLA rejected limits and conditions of other shapes and types without naming the argument.
def test_loop_that_cannot_be_is_refused(run, refused, infeed_of, numbers):
    called = "Supplied loop {} function cannot be called with the specified inputs. You specified 1 inputs"
    condition = called.format("condition") + (
        r", but the condition takes `\(x, y\)`. Note that infeed is not passed to the loop condition."
    )
    body, step, queue = called.format("body"), lambda x: x + 1, infeed_of(numbers)
    for error, message, arguments, options in (
        *((TypeError, WHOLE, (below, step), {"maximum_iterations": n}) for n in (1.5, True, "3", tf.constant(2.0))),
        *((ValueError, BOUND.format(n), (below, step), {"maximum_iterations": n}) for n in (2**31, 2**63)),
        (ValueError, r"must be a scalar, but has shape \(1,\)", (below, step), {"maximum_iterations": [3]}),
        (TypeError, "Supplied loop condition function cannot be called", (None, step), {}),
        (TypeError, TRUTH.format(r"int32 and shape \(\)"), (lambda x: x, step), {}),
        (TypeError, TRUTH.format(r"bool and shape \(2,\)"), (lambda x: x < [1, 2], step), {}),
        (TypeError, TRUTH.format("float32"), (lambda x: 1.0, step), {}),
        (TypeError, "`infeed_queue` must be an `IPUInfeedQueue`", (below, step), {"infeed_queue": 5}),
        (ValueError, "more Tensor values followed by zero or more", (below, lambda x: (tf.no_op(), x)), {}),
        (TypeError, r"Mismatch between .* \['int32'\] vs \['float32'\]", (below, lambda x: 1.5), {}),
        (TypeError, r"Mismatch between .* \['int32'\] vs \[\]", (below, lambda x: None), {}),
        (TypeError, condition, (lambda x, y: x < 3, step), {}),
        (TypeError, condition, (lambda x, y: x < 3, lambda x, y: x + y), {"infeed_queue": queue}),
        (TypeError, body + r", but the body takes `\(x, y\)`", (below, lambda x, y: x), {}),
        (TypeError, body + r" and 1 additional .* takes `\(x\)`", (below, step), {"infeed_queue": queue}),
    ):
        refused(error, message, run, lambda: while_loop(*arguments, [0], **options))  # noqa: B023


def test_version_of_while_loops_is_noted_and_changes_nothing(run, refused, caplog):
    def loop(version):
        return lambda: while_loop(lambda x: x < 3, lambda x: x + 1, [0], use_while_v1=version)

    with caplog.at_level(logging.WARNING):
        assert run(loop(False)).numpy() == 3
    assert "`use_while_v1=False` makes no difference" in caplog.text
    refused(TypeError, "`use_while_v1` must be True or False, but is 'no'", run, loop("no"))


def test_element_goes_to_the_body_and_not_to_the_condition(run, infeed_of, numbers):
    source, sink = infeed_of(numbers), ipu.IPUOutfeedQueue()
    body = lambda total, x: (total + x, sink.enqueue(x))  # noqa: E731
    assert run(lambda: while_loop(lambda total: total < 10, body, [0], source)).numpy() == 10
    np.testing.assert_array_equal(sink.dequeue(), [0, 1, 2, 3, 4])
    assert run(lambda: while_loop(lambda total: total < 10, lambda total, x: total + x, [0], source)).numpy() == 11


def test_loops_of_both_kinds_nest(run, infeed_of, numbers):
    source, sink = infeed_of(numbers), ipu.IPUOutfeedQueue()

    def body(total, x):
        up = while_loop(lambda inside: inside < x + 2, lambda inside, y: inside + 1 + 0 * y, [x], source)
        return total + up, sink.enqueue((x, up))

    assert run(lambda: repeat(3, body, [0], source)).numpy() == 2 + 5 + 8
    x, up = sink.dequeue()
    np.testing.assert_array_equal(x, [0, 3, 6])
    np.testing.assert_array_equal(up, [2, 5, 8])


def test_loop_has_a_gradient_where_it_has_a_limit(run, refused):
    def program(x, limit):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y, _ = while_loop(lambda y, i: i < 3, lambda y, i: (y * x, i + 1), [x, 0], maximum_iterations=limit)
        return tape.gradient(y, x)

    assert run(program, tf.constant(2.0), 5).numpy() == 32
    refused(tf.errors.InvalidArgumentError, "maximum_iteration", run, program, tf.constant(2.0), None)
