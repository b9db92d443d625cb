"""Variables that differ by group of replicas, and inputs that a group shares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.ops import ReplicaGroups
from tensorflow_ipu.ops.replica_variables import VariableRetrievalMode, assign_groups, read_groups

ALL = VariableRetrievalMode.AllReplicas


@pytest.fixture
def four(replicas: Any) -> ipu.IPUStrategy:
    return replicas(4)


def outputs(strategy: Any, function: Any, *args: Any) -> np.ndarray:
    """What `function` gives on each replica."""
    queue = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program() -> None:
        queue.enqueue(function(*args))

    strategy.run(program)
    return queue.dequeue().numpy()[0]


@pytest.mark.parametrize(
    ("groups", "values", "expected"),
    [
        (None, [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]),
        (ReplicaGroups(2), [1.0, 2.0], [1.0, 1.0, 2.0, 2.0]),
        (ReplicaGroups(2, orthogonal=True), [1.0, 2.0], [1.0, 2.0, 1.0, 2.0]),
        (ReplicaGroups(), [5.0], [5.0, 5.0, 5.0, 5.0]),
    ],
    ids=["each", "neighbours", "orthogonal", "all"],
)
def test_each_group_has_a_value_of_its_own(four: Any, groups: Any, values: Any, expected: Any) -> None:
    with four.scope():
        variable = tf.Variable(0.0)
    assign_groups(variable, values, groups)
    np.testing.assert_array_equal(outputs(four, lambda: variable + 0.0), expected)
    np.testing.assert_array_equal(read_groups(variable, groups), values)
    np.testing.assert_array_equal(read_groups(variable, groups, ALL), expected)
    assert variable.numpy() == expected[0]


def test_values_stay_from_run_to_run_and_a_read_one_is_not_written(four: Any) -> None:
    with four.scope():
        variable = tf.Variable(tf.zeros([1000]))

    @tf.function(jit_compile=True)
    def step() -> None:
        variable.assign_add(tf.ones([1000]))

    four.run(step)
    before = read_groups(variable)
    four.run(step)
    np.testing.assert_array_equal(before, np.ones([4, 1000]))
    np.testing.assert_array_equal(read_groups(variable), np.full([4, 1000], 2.0))
    assign_groups(variable, [np.zeros(1000), np.ones(1000)], ReplicaGroups(2))
    for _ in range(2):
        four.run(step)
    np.testing.assert_array_equal(read_groups(variable, ReplicaGroups(2))[:, 0], [2.0, 3.0])
    variable.assign(tf.fill([1000], 7.0))
    np.testing.assert_array_equal(read_groups(variable), np.full([4, 1000], 7.0))


def test_a_keras_variable_has_groups_too(four: Any) -> None:
    import keras

    with four.scope():
        layer = keras.layers.Dense(1, use_bias=False)
        layer.build([None, 1])
    assign_groups(layer.kernel, [[[3.0]], [[4.0]]], ReplicaGroups(2))
    result = outputs(four, lambda: layer(tf.ones([1, 1])))
    np.testing.assert_array_equal(result.ravel(), [3.0, 3.0, 4.0, 4.0])


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (ReplicaGroups(2), [[0, 0, 1, 1], [2, 2, 3, 3]]),
        (ReplicaGroups(2, orthogonal=True), [[0, 1, 0, 1], [2, 3, 2, 3]]),
        (ReplicaGroups(), [[0, 0, 0, 0], [1, 1, 1, 1]]),
        (None, [[0, 1, 2, 3], [4, 5, 6, 7]]),
    ],
    ids=["neighbours", "orthogonal", "all", "none"],
)
def test_a_group_shares_its_elements(four: Any, groups: Any, expected: Any) -> None:
    dataset = tf.data.Dataset.range(8).map(lambda x: tf.cast(x, tf.int32))
    infeed = ipu.IPUInfeedQueue(dataset, replica_groups=groups)
    outfeed = ipu.IPUOutfeedQueue()
    with four.scope():
        infeed.initializer  # noqa: B018

        @tf.function(jit_compile=True)
        def program(n: Any) -> None:
            ipu.loops.repeat(n, lambda x: outfeed.enqueue(x), [], infeed)

        four.run(program, args=(tf.constant(2),))
        np.testing.assert_array_equal(outfeed.dequeue(), expected)


def test_a_group_size_that_does_not_divide_the_replicas_is_refused(four: Any) -> None:
    with four.scope():
        variable = tf.Variable(0.0)
        infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors(1.0).repeat(), replica_groups=ReplicaGroups(3))
        outfeed = ipu.IPUOutfeedQueue()
        infeed.initializer  # noqa: B018

        @tf.function(jit_compile=True)
        def program() -> None:
            ipu.loops.repeat(1, outfeed.enqueue, [], infeed)

        with pytest.raises(ValueError, match="groups of 3, which does not divide the 4 replicas"):
            read_groups(variable, ReplicaGroups(3))
        with pytest.raises(tf.errors.InvalidArgumentError, match="groups of 3 replicas, and the program has 4"):
            four.run(program)


def test_what_has_no_replicas_is_refused(four: Any) -> None:
    elsewhere = tf.Variable(0.0)
    with pytest.raises(ValueError, match="where there are no replicas"):
        read_groups(elsewhere)
    with pytest.raises(TypeError, match="`variable` must be"):
        read_groups(tf.constant(1.0))
    with four.scope():
        variable = tf.Variable([0.0])
    with pytest.raises(ValueError, match=r"must have the shape \[4, 1\], a value a group, but has \[2\]"):
        assign_groups(variable, [1.0, 2.0])
    with pytest.raises(TypeError, match="`retrieval_mode` must be"):
        read_groups(variable, retrieval_mode="all")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="`replica_groups` must be"):
        ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors(1.0), replica_groups=2)  # pyright: ignore[reportArgumentType]
