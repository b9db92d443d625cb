"""Random numbers in programs: a stream a replica, reproducible from a seed."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.config import reset_ipu_seed

DRAWS = {
    "uniform": lambda: tf.random.uniform([8]),
    "integers": lambda: tf.random.uniform([8], 0, 1000, tf.int32),
    "normal": lambda: tf.random.normal([8]),
    "truncated normal": lambda: tf.random.truncated_normal([8]),
    "shuffle": lambda: tf.random.shuffle(tf.range(32)),
    "categorical": lambda: tf.random.categorical(tf.zeros([1, 1000]), 8),
    "dropout": lambda: tf.nn.dropout(tf.ones([64]), 0.5),
}


def drawn(strategy, draw, times=3):
    """What a program draws, of shape [times, replicas, ...]."""
    queue = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program():
        for _ in tf.range(times):
            queue.enqueue(draw())

    with strategy.scope():
        strategy.run(program)
    return queue.dequeue().numpy()


def test_replicas_draw_their_own_numbers_again_from_the_same_seed(replicas):
    strategy, queue = replicas(3), ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program():
        for _ in tf.range(3):
            queue.enqueue({name: draw() for name, draw in DRAWS.items()})

    def numbers(seed):
        reset_ipu_seed(seed)
        strategy.run(program)
        return queue.dequeue()

    first, again, others = numbers(5), numbers(5), numbers(6)
    for name in DRAWS:
        flat = first[name].numpy().reshape([9, -1])
        assert len(np.unique(flat, axis=0)) == 9, f"each draw of {name} of each replica is another one"
        np.testing.assert_array_equal(again[name], first[name], err_msg=name)
        assert not np.array_equal(others[name], first[name]), name


def test_identical_replicas_draw_the_same(replicas):
    """Generators, too: they went on to derive numbers from the replica's index."""
    strategy = replicas(3)

    def numbers(identical):
        with strategy.scope():
            generator = tf.random.Generator.from_seed(1)
        reset_ipu_seed(5, experimental_identical_replicas=identical)
        return drawn(strategy, lambda: tf.concat([generator.uniform([4]), tf.random.uniform([8])], 0), times=2)

    own = numbers(False)
    assert len(np.unique(own[:, :, :4].reshape([6, -1]), axis=0)) == 6
    np.testing.assert_array_equal(numbers(True), np.repeat(own[:, :1], 3, axis=1))


def test_runs_go_on_in_the_stream(replicas):
    strategy = replicas(1)
    queue = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program():
        queue.enqueue(tf.random.uniform([]))

    def draw(runs):
        for _ in range(runs):
            strategy.run(program)
        return queue.dequeue().numpy()

    reset_ipu_seed(1)
    first = draw(4)
    assert len(np.unique(first)) == 4
    reset_ipu_seed(1)
    np.testing.assert_array_equal(np.concatenate([draw(1), draw(3)]), first)


def test_a_number_has_the_distribution_that_it_should_have(replicas):
    strategy = replicas(2)
    reset_ipu_seed(3)
    numbers = drawn(strategy, lambda: tf.stack([tf.random.uniform([20000]), tf.random.normal([20000], 2.0, 3.0)]), 1)
    uniform, normal = numbers[0, :, 0], numbers[0, :, 1]
    assert (uniform.mean(), uniform.std()) == pytest.approx((0.5, 12**-0.5), abs=0.01)
    assert (normal.mean(), normal.std()) == pytest.approx((2.0, 3.0), abs=0.1)
    order = drawn(strategy, lambda: tf.random.shuffle(tf.range(100)), times=1)[0, 0]
    np.testing.assert_array_equal(np.sort(order), np.arange(100))


def test_keras_drops_other_units_out_on_each_replica_and_on_the_first_those_of_plain_keras(replicas):
    plain_layer = keras.layers.Dropout(0.5, seed=7)
    plain_layer.build([64])
    plain = np.stack([plain_layer(tf.ones([64]), training=True) for _ in range(2)])
    strategy = replicas(3)
    with strategy.scope():
        layer = keras.layers.Dropout(0.5, seed=7)
    masks = drawn(strategy, lambda: layer(tf.ones([64]), training=True), times=2)
    np.testing.assert_array_equal(masks[:, 0], plain)
    assert len(np.unique(masks.reshape([6, -1]), axis=0)) == 6


def test_outside_of_programs_tensorflow_draws_as_ever():
    tf.random.set_seed(4)
    first = tf.random.uniform([3])
    tf.random.set_seed(4)

    @tf.function
    def draw():
        return tf.random.uniform([3])

    np.testing.assert_array_equal(tf.random.uniform([3]), first)
    names = {operation.type for operation in draw.get_concrete_function().graph.get_operations()}
    assert "RandomUniform" in names
