"""Slices at places that only a run knows: reads, gradients and assignments equal plain TensorFlow's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu.ops.functional_ops import outlined_function

X = np.random.default_rng(1).normal(size=[6, 5, 4]).astype(np.float32)

# A slice at the index `i`, which is 1, 2, 3.
SLICES: dict[str, Callable[[Any, Any], Any]] = {
    "i": lambda x, i: x[i],
    "-i": lambda x, i: x[-i],
    ":, i": lambda x, i: x[:, i],
    "..., i": lambda x, i: x[..., i],
    "i, -i, 2": lambda x, i: x[i, -i, 2],
    "1:3, i": lambda x, i: x[1:3, i],
    "i, newaxis, 1:3": lambda x, i: x[i, tf.newaxis, 1:3],
    "1, i, -3:-1": lambda x, i: x[1, i, -3:-1],
    "::2, i": lambda x, i: x[::2, i],
    "::-1, i, 3:0:-2": lambda x, i: x[::-1, i, 3:0:-2],
    "i:i+2": lambda x, i: x[i : i + 2],
    "2-i:4-i": lambda x, i: x[2 - i + 1 : 4 - i + 1],
    "(i-1)*2:i*2, i": lambda x, i: x[(i - 1) * 2 : i * 2, i],
    "-i-2:-i": lambda x, i: x[-i - 2 : -i],
    "1:, i:i+2, ::-1": lambda x, i: x[1:, i : i + 2, ::-1],
    "i:i+3:2": lambda x, i: x[i : i + 3 : 2],
    "i+2:i-1:-1": lambda x, i: x[i + 2 : i - 1 : -1],
    "..., i:i+1, newaxis": lambda x, i: x[..., i : i + 1, tf.newaxis],
    "i:i+2, :, ::3": lambda x, i: x[i : i + 2, :, ::3],
    "int64": lambda x, i: x[tf.cast(i, tf.int64), 1 : tf.constant(3, tf.int64)],
}


def read(x: Any, i: Any) -> dict[str, Any]:
    return {name: taken(x, i) for name, taken in SLICES.items()}


def gradients(x: Any, i: Any) -> dict[str, Any]:
    results = {}
    for name, taken in SLICES.items():
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.sin(taken(x, i)))
        results[name] = tape.gradient(loss, x)
    return results


# The assignment of a value to a slice of a variable at the index `i`, which is 1, 2, 3.
ASSIGNMENTS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "i": lambda v, i, y: v[i].assign(y[0]),
    "-i": lambda v, i, y: v[-i].assign(y[0]),
    ":, i": lambda v, i, y: v[:, i].assign(y[:, 0]),
    "i, j": lambda v, i, y: v[i, i - 1].assign(y[0, 0]),
    "i, j, k": lambda v, i, y: v[i, 1, -i].assign(y[0, 0, 0]),
    "1:3, i": lambda v, i, y: v[1:3, i].assign(y[:2, 0]),
    "..., i": lambda v, i, y: v[..., i].assign(y[..., 0]),
    "i:i+2": lambda v, i, y: v[i : i + 2].assign(y[:2]),
    "(i-1)*2:i*2": lambda v, i, y: v[(i - 1) * 2 : i * 2].assign(y[:2]),
    ":i*2, ::2": lambda v, i, y: v[i - 1 : i + 1, ::2].assign(y[:2, :3]),
    "::-2, i": lambda v, i, y: v[::-2, i].assign(y[:3, 0]),
    "i, ::-1": lambda v, i, y: v[i, ::-1].assign(y[0]),
    "i+2:i:-1": lambda v, i, y: v[i + 2 : i : -1].assign(y[:2]),
    "a number": lambda v, i, y: v[i].assign(y[0, 0, 0]),
    "a row": lambda v, i, y: v[i].assign(y[0, :1]),
    "rows": lambda v, i, y: v[i : i + 2].assign(y[0]),
    "an axis more": lambda v, i, y: v[i].assign(y[:1, :1]),
    "add": lambda v, i, y: v[i].assign(v[i] + y[0]),
    "a known place": lambda v, i, y: v[::-2, 1].assign(y[:3, 0] * tf.cast(i, tf.float32)),
    "one of its rows": lambda v, i, y: v[i].assign(v[i - 1]),
}


def in_loop(call: Callable[[Any], Any]) -> Any:
    """Returns the results of a loop for i from 1 to 3, which XLA does not unroll."""
    first = call(tf.constant(1))
    every = tf.nest.map_structure(lambda value: tf.TensorArray(value.dtype, 3, element_shape=value.shape), first)

    def body(i: Any, every: Any) -> Any:
        return i + 1, tf.nest.map_structure(lambda array, value: array.write(i - 1, value), every, call(i))

    _, every = tf.while_loop(lambda i, _: i < 4, body, [tf.constant(1), every])
    return tf.nest.map_structure(lambda array: array.stack(), every)


def assert_equal(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, 1e-5, 1e-5, err_msg=name)


# If a slice also had a known range, XLA took the first elements.
@pytest.mark.parametrize("call", [read, gradients])
def test_slices_at_numbers_of_a_loop_have_the_elements_of_plain_tensorflow(call, strategy):
    x = tf.constant(X)
    actual = strategy.run(tf.function(lambda x: in_loop(lambda i: call(x, i)), jit_compile=True, autograph=False), (x,))
    assert_equal(actual, tf.nest.map_structure(lambda *each: tf.stack(each), *(call(x, i) for i in (1, 2, 3))))


# XLA has no assignment at such a place, and failed with a different message.
def test_assignments_at_numbers_of_a_loop_change_the_elements_that_plain_tensorflow_changes(strategy):
    def program(variables: dict[str, Any]) -> dict[str, Any]:
        y = tf.constant(X[::-1].copy())
        for i in tf.range(1, 4):
            for name, assign in ASSIGNMENTS.items():
                assign(variables[name], i, y + tf.cast(i, tf.float32))
        return {name: tf.identity(variable) for name, variable in variables.items()}

    with strategy.scope():
        variables = {name: tf.Variable(X) for name in ASSIGNMENTS}
    host_variables = {name: tf.Variable(X) for name in ASSIGNMENTS}
    actual = strategy.run(tf.function(lambda: program(variables), jit_compile=True))
    assert_equal(actual, program(host_variables))
    assert_equal(variables, host_variables)


def test_indices_of_16_bits_reach_into_an_axis_that_is_longer(strategy):
    values = np.arange(40_000, dtype=np.float32)

    def total(x):
        sums = tf.zeros([2])
        for i in tf.range(1, 4):
            place = tf.cast(i, tf.int16)
            sums += x[place : place + 2] + tf.stack([x[-place], x[place]])
        return sums

    assert_equal({"": strategy.run(tf.function(total, jit_compile=True), (values,))}, {"": total(tf.constant(values))})


def test_updates_of_a_tensor_and_their_gradients_equal_those_of_plain_tensorflow(strategy):
    update: Any = tf.raw_ops.TensorStridedSliceUpdate

    def updated(x: Any, y: Any, i: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            changed = update(input=x, begin=[1, i], end=[3, i + 1], strides=[1, 1], value=y, shrink_axis_mask=2)
            loss = tf.reduce_sum(tf.sin(changed) * X)
        return [changed, *tape.gradient(loss, [x, y])]

    x, y = tf.constant(X), tf.constant(X[:2, 0] * 3)
    actual_steps = strategy.run(
        tf.function(lambda x, y: in_loop(lambda i: updated(x, y, i)), jit_compile=True, autograph=False), (x, y)
    )
    for step, i in enumerate((1, 2, 3)):
        for actual, expected in zip(actual_steps, updated(x, y, tf.constant(i)), strict=True):
            np.testing.assert_allclose(actual[step], expected, 1e-5, 1e-5)


def test_slices_of_as_many_elements_in_every_run_have_that_shape_while_they_are_traced(strategy):
    shapes = []

    def program(x: Any) -> Any:
        total = 0.0
        for i in tf.range(2):
            half = x[i * 3 : (i + 1) * 3, tf.newaxis, 1:, i]
            shapes.append(half.shape.as_list())
            shapes.append(x[i : i + 7].shape.as_list())  # The axis never has this size.
            total += tf.reduce_sum(half)
        return total

    tf.function(program, jit_compile=True).get_concrete_function(tf.constant(X))
    assert shapes == [[None, 1, None], [None, 5, 4]]
    shapes.clear()
    actual = strategy.run(tf.function(program, jit_compile=True), (tf.constant(X),))
    assert shapes == [[3, 1, 4], [None, 5, 4]]
    np.testing.assert_allclose(actual, X[:3, 1:, 0].sum() + X[3:, 1:, 1].sum(), 1e-5)


def at(call: Callable[[Any, Any], Any], i: int) -> Callable[[Any], Any]:
    """Calls the function with an index that is known only at run time."""
    return tf.function(
        lambda v: tf.while_loop(lambda j, _: j < i + 1, lambda j, _: (j + 1, call(v, j)), [tf.constant(i), 0.0])[1],
        jit_compile=True,
        autograph=False,
    )


# XLA moves an index into the tensor, and overwrote the last row.
@pytest.mark.parametrize(
    ("call", "i", "message"),
    [
        (lambda v, i: v[i].assign(v[0])[0, 0, 0], 6, "slice index out of bounds:] [6] [of an axis of 6 elements]"),
        (
            lambda v, i: v[1, i].assign(v[0, 0])[0, 0, 0],
            -6,
            "slice index out of bounds:] [-6] [of an axis of 5 elements]",
        ),
        (
            lambda v, i: v[i : i + 2].assign(v[:2])[0, 0, 0],
            5,
            "a slice from] [5] [to] [7] [must have 2 of the 6 elements",
        ),
        (
            lambda v, i: v[i : i * 2].assign(v[:2])[0, 0, 0],
            3,
            "a slice from] [3] [to] [6] [must have 2 of the 6 elements",
        ),
        (lambda v, i: tf.reduce_sum(v[i : i + 2]), 5, "a slice from] [5] [to] [7] [must have 2 of the 6 elements"),
    ],
)
def test_places_outside_of_a_tensor_end_the_run_and_change_nothing(call, i, message, strategy):
    with strategy.scope():
        variable = tf.Variable(X)
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)) as failure:
        strategy.run(at(call, i), (variable,))
    assert re.search(r"StridedSlice\w* `\S+` \(\S*test_slices\.py:\d+", str(failure.value))
    np.testing.assert_array_equal(variable, X)


def test_indices_outside_of_a_tensor_read_its_last_element_as_in_any_function_that_xla_compiles(strategy):
    for i, last in ((9, X[5]), (-9, X[0])):
        np.testing.assert_allclose(
            strategy.run(at(lambda v, i: tf.reduce_sum(v[i]), i), (tf.constant(X),)), last.sum(), 1e-5
        )


def test_assignment_of_a_number_of_elements_that_the_data_decide_is_refused_with_the_line_and_the_way_out(strategy):
    with strategy.scope():
        variable = tf.Variable(X)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"(?s)must be static.*test_slices\.py:.*tensor_scatter_nd_update"
    ):
        strategy.run(at(lambda v, i: v[i : i * 2].assign(1.0)[0, 0, 0], 2), (variable,))


# This function doubles a variable in a separate function.
INNER: dict[str, Callable[[Any], Any]] = {
    "loop": lambda v: tf.while_loop(lambda i: i < 1, lambda i: (v.assign(v * 2) is None or i + 1,), [0]),
    "branch": lambda v: tf.cond(v[1] > 0, lambda: v.assign(v * 2), v.read_value),
    "case": lambda v: tf.switch_case(v[1] - 1, [lambda: v.assign(v * 2), v.read_value]),
    "function": lambda v: tf.function(lambda: v.assign(v * 2), autograph=False)(),
    "outlined": lambda v: outlined_function(lambda: v.assign(v * 2))(),
    "branch in a loop": lambda v: tf.while_loop(lambda i: i < 1, lambda i: (INNER["branch"](v) is None or i + 1,), [0]),
}


# The assignment to a variable that an index needs was lost.
@pytest.mark.parametrize("name", INNER)
def test_a_variable_keeps_what_a_loop_or_a_branch_assigned_where_an_index_depends_on_it(name, strategy):
    def program(v: Any) -> Any:
        INNER[name](v)
        v[v[1] + 1].assign(50)
        v[v[2] - 1 : v[2] + 1].assign([70, 80])
        return tf.slice(v, [v[1] + 1], [2])

    with strategy.scope():
        v = tf.Variable(tf.range(6))
    result = strategy.run(tf.function(program, jit_compile=True, autograph=False), (v,))
    np.testing.assert_array_equal(v, [0, 2, 4, 70, 80, 10])
    np.testing.assert_array_equal(result, [70, 80])


# The slices had the size of the image, and undefined pixels.
def test_random_crop_trains_with_the_numbers_of_plain_keras(strategy):
    def trained() -> list[float]:
        keras.utils.set_random_seed(1)
        x, y = np.random.default_rng(0).random([8, 16, 16, 3]).astype("float32"), np.arange(8) % 3
        layers = [keras.layers.RandomCrop(8, 8, seed=1), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3)]
        model = keras.Sequential([keras.Input([16, 16, 3]), *layers])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model.fit(x, y, batch_size=4, epochs=2, verbose=0).history["loss"]

    with strategy.scope():
        losses = trained()
    np.testing.assert_allclose(losses, trained(), 1e-4)
