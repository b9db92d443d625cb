"""`loops.repeat`: the body's arguments and results, and the number of iterations."""

from __future__ import annotations

import functools
import logging
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.loops import repeat

# What goes in, what comes out.


@pytest.mark.parametrize("inputs", [[0], (0,), 0, np.int32(0), tf.constant(0)], ids=repr)
def test_one_carried_value_comes_out_bare(inputs: Any, run: Any) -> None:
    result = run(lambda: repeat(10, lambda x: x + 1, inputs))
    assert isinstance(result, tf.Tensor)
    assert (result.dtype, result.shape, result.numpy()) == (tf.int32, [], 10)


@pytest.mark.parametrize("kind", [list, tuple])
def test_several_carried_values_come_out_as_a_list(kind: Any, run: Any) -> None:
    result = run(lambda: repeat(3, lambda x, y, z: kind([x + 1, y * 2.0, z]), kind([0, 1.0, True])))
    assert isinstance(result, list)
    assert [x.dtype for x in result] == [tf.int32, tf.float32, tf.bool]
    assert [x.numpy() for x in result] == [3, 8, True]


def test_array_is_one_carried_value(run: Any) -> None:
    result = run(lambda: repeat(2, lambda x: x * 2, np.array([1, 2, 3], np.float32)))
    np.testing.assert_array_equal(result, [4, 8, 12])


def test_variable_goes_in_by_its_value(strategy: Any, run: Any) -> None:
    with strategy.scope():
        variable = tf.Variable(7)
    assert run(lambda: repeat(3, lambda x: x + 1, [variable])).numpy() == 10
    assert variable.numpy() == 7


def test_results_that_are_no_tensors_are_converted(run: Any) -> None:
    result = run(lambda: repeat(3, lambda x, y: (5, np.float32(2)), [0, 0.0]))
    assert [x.numpy() for x in result] == [5, 2]


@pytest.mark.parametrize("inputs", [None, [], ()])
@pytest.mark.parametrize("returned", [lambda: None, list, tf.no_op, lambda: (tf.no_op(), tf.no_op())])
def test_loop_without_carried_values_returns_an_operation(inputs: Any, returned: Any, run: Any) -> None:
    def program() -> Any:
        result = repeat(3, returned, inputs)
        assert isinstance(result, tf.Operation)
        return 1

    assert run(program).numpy() == 1


def test_body_is_traced_once(run: Any) -> None:
    traces = []

    def body(x: Any) -> Any:
        traces.append(1)
        return x + 1

    assert run(lambda: repeat(50, body, [0])).numpy() == 50
    assert len(traces) == 1


class Adder:
    def __init__(self, step: int) -> None:
        self.step = step

    def add(self, x: Any) -> Any:
        return x + self.step

    def __call__(self, x: Any) -> Any:
        return x + 10 * self.step


BODIES = {
    "method": (lambda: Adder(2).add, 6),
    "callable object": (lambda: Adder(2), 60),
    "partial": (lambda: functools.partial(lambda step, x: x + step, 3), 9),
    "graph function": (lambda: tf.function(lambda x: x + 4), 12),
    "defaults": (lambda: lambda x, y=5, *more, **named: x + y, 15),
    "any arguments": (lambda: lambda *values: values[0] + 6, 18),
}


@pytest.mark.parametrize("name", BODIES)
def test_body_may_be_any_callable(name: str, run: Any) -> None:
    body, expected = BODIES[name]
    assert run(lambda: repeat(3, body(), [0])).numpy() == expected


def step_with_branch(x: Any) -> Any:
    if x > 1:
        x = x + 10
    for _ in range(2):
        x = x + 1
    return x


def test_body_may_branch_on_tensors(run: Any) -> None:
    def program() -> Any:
        return repeat(2, step_with_branch, [0])

    assert run(program).numpy() == 14


def test_loop_runs_eagerly_too() -> None:
    assert repeat(3, lambda x: x + 1, [0]).numpy() == 3


# The number of iterations.


@pytest.mark.parametrize("n", [0, -1, -5])
def test_loop_of_no_iterations_gives_the_inputs(n: int, run: Any, infeed_of: Any, numbers: Any) -> None:
    queue = infeed_of(numbers)
    assert run(lambda: repeat(n, lambda x, y: x + y + 1, [5], queue)).numpy() == 5
    assert run(lambda m: repeat(m, lambda x, y: x + y + 1, [5], queue), tf.constant(n)).numpy() == 5
    assert run(queue._dequeue).numpy() == 0


@pytest.mark.parametrize(
    "n",
    [4, np.int64(4), np.uint8(4), tf.constant(4), tf.constant(4, tf.int64), tf.constant(4, tf.uint8)],
    ids=repr,
)
def test_number_of_iterations_may_be_of_any_integer_type(n: Any, run: Any) -> None:
    assert run(lambda: repeat(n, lambda x: x + 1, [5])).numpy() == 9
    assert run(lambda n: repeat(n, lambda x: x + 1, [5]), n).numpy() == 9


def test_number_of_iterations_may_come_with_the_run(strategy: Any) -> None:
    traces = []

    @tf.function(jit_compile=True)
    def program(n: Any) -> Any:
        traces.append(1)
        return repeat(n, lambda x: x + 2, 0)

    assert [int(strategy.run(program, (tf.constant(n),))) for n in (3, 0, 7)] == [6, 0, 14]
    assert len(traces) == 1


@pytest.mark.parametrize("n", [1.5, True, None, "3", tf.constant(1.0), np.float32(3), np.bool_(True)], ids=repr)
def test_number_of_iterations_that_is_not_whole_is_refused(n: Any, run: Any) -> None:
    with pytest.raises(TypeError, match="`n` must be a whole number of iterations, but is"):
        run(lambda: repeat(n, lambda x: x + 1, [5]))


@pytest.mark.parametrize("n", [2**63, -(2**63) - 1, np.uint64(2**63)], ids=repr)
def test_number_of_iterations_of_more_than_64_bits_is_refused(n: Any, run: Any) -> None:
    with pytest.raises(ValueError, match=rf"`n` must be from -9223372036854775808 to 9223372036854775807, but is {n}"):
        run(lambda: repeat(n, lambda x: x + 1, [5]))


@pytest.mark.parametrize("n", [[3], np.array([1, 2])], ids=repr)
def test_number_of_iterations_that_is_no_scalar_is_refused(n: Any, run: Any) -> None:
    with pytest.raises(ValueError, match=r"`n` must be a scalar, but has shape"):
        run(lambda: repeat(n, lambda x: x + 1, [5]))


# Signatures.


def test_body_that_takes_too_few_or_too_many_inputs_is_refused(run: Any) -> None:
    words = (
        "Supplied loop body function cannot be called with the specified inputs. You specified {} inputs, but the body"
    )
    with pytest.raises(TypeError, match=words.format(1) + r" takes `\(x, y\)`"):
        run(lambda: repeat(3, lambda x, y: x, [0]))
    with pytest.raises(TypeError, match=words.format(2) + r" takes `\(x\)`"):
        run(lambda: repeat(3, lambda x: x, [0, 1]))
    with pytest.raises(TypeError, match=words.format(0) + r" takes `\(x\)`"):
        run(lambda: repeat(3, lambda x: x))


def test_body_that_does_not_take_the_element_is_refused(run: Any, infeed_of: Any, numbers: Any) -> None:
    words = r"You specified 1 inputs and {} additional inputs from infeed{}, but the body takes"
    single = infeed_of(numbers)
    pair = infeed_of(numbers.map(lambda x: (x, x)))
    named = infeed_of(numbers.map(lambda x: {"a": x, "b": x}))
    with pytest.raises(TypeError, match=words.format(1, "") + r" `\(x\)`"):
        run(lambda: repeat(3, lambda x: x, [0], single))
    with pytest.raises(TypeError, match=words.format(2, "") + r" `\(x, y\)`"):
        run(lambda: repeat(3, lambda x, y: x, [0], pair))
    with pytest.raises(TypeError, match=words.format(2, r" \(a, b by name\)") + r" `\(x, a\)`"):
        run(lambda: repeat(3, lambda x, a: x, [0], named))


def test_body_that_is_refused_is_not_called_and_takes_no_element(run: Any, infeed_of: Any, numbers: Any) -> None:
    queue = infeed_of(numbers)
    calls = []
    with pytest.raises(TypeError, match="Supplied loop body"):
        run(lambda: repeat(3, lambda x: calls.append(x), [0], queue))
    assert not calls
    assert not queue.dequeued


@pytest.mark.parametrize("body", [None, 3, "body"])
def test_body_that_cannot_be_called_is_refused(body: Any, run: Any) -> None:
    with pytest.raises(TypeError, match=rf"Supplied loop body function cannot be called .* since it is {body!r}"):
        run(lambda: repeat(3, body, [0]))


def test_infeed_that_is_no_queue_is_refused(run: Any, numbers: Any) -> None:
    with pytest.raises(TypeError, match=r"`infeed_queue` must be an `IPUInfeedQueue`.*`IPUInfeedQueue\(dataset\)`"):
        run(lambda: repeat(3, lambda x: x, [0], numbers))


@pytest.mark.parametrize("inputs", [{"a": 5}, [{"a": 5}], [None], [object()]])
def test_inputs_that_are_no_tensors_are_refused(inputs: Any, run: Any) -> None:
    with pytest.raises(TypeError, match="`inputs` must be a tensor, or a list or tuple of them, but holds"):
        run(lambda: repeat(3, lambda x: x, inputs))


def test_version_of_while_loops_is_noted_and_changes_nothing(run: Any, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING):
        assert run(lambda: repeat(3, lambda x: x + 1, [0], use_while_v1=True)).numpy() == 3
        assert "use_while_v1" not in caplog.text
        assert run(lambda: repeat(3, lambda x: x + 1, [0], use_while_v1=False)).numpy() == 3
        assert "`use_while_v1=False` makes no difference" in caplog.text
    with pytest.raises(TypeError, match="`use_while_v1` must be True or False, but is 1"):
        run(lambda: repeat(3, lambda x: x + 1, [0], use_while_v1=1))


# What the body returns.


def test_tensor_after_an_operation_is_refused(run: Any) -> None:
    words = "IPU loop body must return zero or more Tensor values followed by zero or more Operations"
    with pytest.raises(ValueError, match=words):
        run(lambda: repeat(3, lambda x: (tf.no_op(), x), [0]))
    with pytest.raises(ValueError, match=words):
        run(lambda: repeat(3, lambda x, y: (x, tf.no_op(), y), [0, 1]))


def test_results_of_other_types_are_refused(run: Any) -> None:
    words = (
        r"Mismatch between input types and output types for loop body: \['int32', 'int32'\] vs \['int32', 'float32'\]"
    )
    with pytest.raises(TypeError, match=words):
        run(lambda: repeat(3, lambda x, y: (x, tf.cast(y, tf.float32)), [0, 1]))


def test_results_of_another_number_are_refused(run: Any) -> None:
    words = r"Mismatch between input types and output types for loop body: \['int32', 'int32'\] vs {}\. The body must"
    for body, types in (
        (lambda x, y: x, r"\['int32'\]"),
        (lambda x, y: None, r"\[\]"),
        (lambda x, y: tf.no_op(), r"\[\]"),
        (lambda x, y: (x, y, x), r"\['int32', 'int32', 'int32'\]"),
    ):
        with pytest.raises(TypeError, match=words.format(types)):
            run(lambda body=body: repeat(3, body, [0, 1]))


def test_results_of_another_shape_are_refused(run: Any) -> None:
    with pytest.raises(ValueError, match=r"shape \(1,\), but has shape \(2,\) after one iteration"):
        run(lambda: repeat(3, lambda x: tf.concat([x, x], 0), [[5]]))


@pytest.mark.parametrize("returned", [lambda x: {"a": x}, lambda x: object(), lambda x: [{"a": x}]])
def test_results_that_are_no_tensors_are_refused(returned: Any, run: Any) -> None:
    with pytest.raises(TypeError, match="what `body` returns must be a tensor, or a list or tuple of them, but holds"):
        run(lambda: repeat(3, returned, [0]))


def test_operations_that_the_body_returns_run_in_each_iteration(strategy: Any, run: Any) -> None:
    queue = ipu.IPUOutfeedQueue()
    with strategy.scope():
        variable = tf.Variable(0)

    def body(x: Any) -> Any:
        total = variable.assign_add(x)
        return x + 1, queue.enqueue((x, total)), tf.group(variable.assign_add(100, read_value=False))

    assert run(lambda: repeat(4, body, [0])).numpy() == 4
    x, total = queue.dequeue()
    np.testing.assert_array_equal(x, [0, 1, 2, 3])
    np.testing.assert_array_equal(total, [0, 101, 203, 306])
    assert variable.numpy() == 406


def test_operations_run_where_nothing_is_carried(strategy: Any, run: Any) -> None:
    with strategy.scope():
        variable = tf.Variable(0)

    def program() -> Any:
        repeat(5, lambda: variable.assign_add(1).op)
        return variable.read_value()

    assert run(program).numpy() == 5


# In a graph of TensorFlow 1 nothing runs by itself, so this shows that operations are depended on.
def test_operations_are_control_dependencies_of_their_iteration() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.Variable(0, use_resource=True)
        one = repeat(4, lambda x: (x + 1, tf.group(variable.assign_add(x))), [0])
        none = repeat(3, lambda: tf.group(variable.assign_add(100)))
        session.run(variable.initializer)
        assert session.run(one) == 4
        assert session.run(variable) == 6
        assert session.run(none) is None
        assert session.run(variable) == 306


def test_inner_loop_may_run_as_often_as_the_outer_one_says(run: Any) -> None:
    body = lambda i, total: (i + 1, repeat(i, lambda x: x + 1, total))  # noqa: E731
    assert [x.numpy() for x in run(lambda: repeat(5, body, [0, 0]))] == [5, 10]
