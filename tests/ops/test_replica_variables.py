"""Variables that differ by group of replicas, and inputs that a group shares."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.ops import ReplicaGroups
from tensorflow_ipu.ops.replica_variables import VariableRetrievalMode, assign_groups, read_groups

ALL = VariableRetrievalMode.AllReplicas


@pytest.fixture
def four(replicas):
    return replicas(4)


def test_each_group_has_a_value_of_its_own_of_variables_and_feeds(four):
    cases = [
        (None, [1.0, 2.0, 3.0, 4.0], [0, 1, 2, 3]),
        (ReplicaGroups(2), [1.0, 2.0], [0, 0, 1, 1]),
        (ReplicaGroups(2, orthogonal=True), [1.0, 2.0], [0, 1, 0, 1]),
        (ReplicaGroups(), [5.0], [0, 0, 0, 0]),
    ]
    dataset = tf.data.Dataset.range(8).map(lambda x: tf.cast(x, tf.int32))
    feeds = [ipu.IPUInfeedQueue(dataset, replica_groups=groups) for groups, _, _ in cases]
    outfeed = ipu.IPUOutfeedQueue()
    with four.scope():
        variables = [tf.Variable(0.0) for _ in cases]
        layer = keras.layers.Dense(1, use_bias=False)
        layer.build([None, 1])
        for feed in feeds:
            feed.initializer  # noqa: B018
    for variable, (groups, values, _) in zip(variables, cases, strict=True):
        assign_groups(variable, values, groups)
    assign_groups(layer.kernel, [[[3.0]], [[4.0]]], ReplicaGroups(2))

    @tf.function(jit_compile=True)
    def program():
        for _ in tf.range(2):
            elements = [feed._dequeue() for feed in feeds]
            outfeed.enqueue((elements, [variable + 0.0 for variable in variables], layer(tf.ones([1, 1]))))

    four.run(program)
    elements, read, layer_outputs = outfeed.dequeue()
    np.testing.assert_array_equal(layer_outputs[0, :, 0, 0], [3.0, 3.0, 4.0, 4.0])
    for index, (groups, values, ranks) in enumerate(cases):
        expected = np.array(values)[ranks]
        np.testing.assert_array_equal(read[index][0], expected)
        np.testing.assert_array_equal(read_groups(variables[index], groups), values)
        np.testing.assert_array_equal(read_groups(variables[index], groups, ALL), expected)
        assert variables[index].numpy() == expected[0]
        np.testing.assert_array_equal(elements[index], np.add.outer([0, len(values)], ranks))


def test_values_stay_from_run_to_run_and_a_read_one_is_not_written(four):
    with four.scope():
        variable = tf.Variable(tf.zeros([1000]))

    @tf.function(jit_compile=True)
    def step():
        variable.assign_add(tf.ones([1000]))

    four.run(step)
    first_values = read_groups(variable)
    four.run(step)
    np.testing.assert_array_equal(first_values, np.ones([4, 1000]))
    np.testing.assert_array_equal(read_groups(variable), np.full([4, 1000], 2.0))
    assign_groups(variable, [np.zeros(1000), np.ones(1000)], ReplicaGroups(2))
    for _ in range(2):
        four.run(step)
    np.testing.assert_array_equal(read_groups(variable, ReplicaGroups(2))[:, 0], [2.0, 3.0])
    variable.assign(tf.fill([1000], 7.0))
    np.testing.assert_array_equal(read_groups(variable), np.full([4, 1000], 7.0))


def test_a_group_size_that_does_not_divide_the_replicas_is_refused(four, refused):
    with four.scope():
        variable = tf.Variable(0.0)
        infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors(1.0).repeat(), replica_groups=ReplicaGroups(3))
        outfeed = ipu.IPUOutfeedQueue()
        infeed.initializer  # noqa: B018

        @tf.function(jit_compile=True)
        def program():
            ipu.loops.repeat(1, outfeed.enqueue, [], infeed)

        message = "groups of 3, which does not divide the 4 replicas"
        refused(ValueError, message, read_groups, variable, ReplicaGroups(3))
        refused(tf.errors.InvalidArgumentError, "groups of 3 replicas, but the program has 4", four.run, program)


def test_what_has_no_replicas_is_refused(four, refused):
    elsewhere = tf.Variable(0.0)
    refused(ValueError, "where there are no replicas", read_groups, elsewhere)
    refused(TypeError, "`variable` must be", read_groups, tf.constant(1.0))
    with four.scope():
        variable = tf.Variable([0.0])
    message = r"must have the shape \[4, 1\], a value a group, but has \[2\]"
    refused(ValueError, message, assign_groups, variable, [1.0, 2.0])
    refused(TypeError, "`retrieval_mode` must be", read_groups, variable, retrieval_mode="all")
    dataset = tf.data.Dataset.from_tensors(1.0)
    refused(TypeError, "`replica_groups` must be", ipu.IPUInfeedQueue, dataset, replica_groups=2)
