"""Random numbers in programs: a stream a replica, reproducible from a seed."""

from __future__ import annotations

from typing import Any

import numpy as np
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


def drawn(strategy: Any, draw: Any, times: int = 3) -> np.ndarray:
    """What a program draws, of shape [times, replicas, ...]."""
    queue = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program() -> None:
        for _ in tf.range(times):
            queue.enqueue(draw())

    with strategy.scope():
        strategy.run(program)
    return queue.dequeue().numpy()


def test_replicas_draw_their_own_numbers_again_from_the_same_seed(replicas: Any) -> None:
    strategy, queue = replicas(3), ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program() -> None:
        for _ in tf.range(3):
            queue.enqueue({name: draw() for name, draw in DRAWS.items()})

    def numbers(seed: int) -> Any:
        reset_ipu_seed(seed)
        strategy.run(program)
        return queue.dequeue()

    first, again, others = numbers(5), numbers(5), numbers(6)
    for name in DRAWS:
        flat = first[name].numpy().reshape([9, -1])
        assert len(np.unique(flat, axis=0)) == 9, f"each draw of {name} of each replica is another one"
        np.testing.assert_array_equal(again[name], first[name], err_msg=name)
        assert not np.array_equal(others[name], first[name]), name


def test_identical_replicas_draw_the_same(replicas: Any) -> None:
    strategy = replicas(3)
    reset_ipu_seed(5, experimental_identical_replicas=True)
    same = drawn(strategy, DRAWS["uniform"])
    np.testing.assert_array_equal(same[:, 0], same[:, 1])
    np.testing.assert_array_equal(same[:, 0], same[:, 2])
    reset_ipu_seed(5)
    np.testing.assert_array_equal(drawn(strategy, DRAWS["uniform"])[:, 0], same[:, 0])


def test_runs_go_on_in_the_stream(replicas: Any) -> None:
    strategy = replicas(1)
    queue = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program() -> None:
        queue.enqueue(tf.random.uniform([]))

    def draw(runs: int) -> np.ndarray:
        for _ in range(runs):
            strategy.run(program)
        return queue.dequeue().numpy()

    reset_ipu_seed(1)
    first = draw(4)
    assert len(np.unique(first)) == 4
    reset_ipu_seed(1)
    np.testing.assert_array_equal(np.concatenate([draw(1), draw(3)]), first)


def test_a_number_has_the_distribution_that_it_should_have(replicas: Any) -> None:
    strategy = replicas(2)
    reset_ipu_seed(3)
    uniform = drawn(strategy, lambda: tf.random.uniform([20000]), times=1)
    assert abs(uniform.mean() - 0.5) < 0.01
    assert abs(uniform.std() - 12**-0.5) < 0.01
    normal = drawn(strategy, lambda: tf.random.normal([20000], 2.0, 3.0), times=1)
    assert abs(normal.mean() - 2.0) < 0.1
    assert abs(normal.std() - 3.0) < 0.1
    order = drawn(strategy, lambda: tf.random.shuffle(tf.range(100)), times=1)[0, 0]
    np.testing.assert_array_equal(np.sort(order), np.arange(100))


def test_generators_draw_their_own_numbers_on_each_replica(replicas: Any) -> None:
    strategy = replicas(3)
    with strategy.scope():
        generator = tf.random.Generator.from_seed(1)
    numbers = drawn(strategy, lambda: generator.uniform([4]), times=2).reshape([6, -1])
    assert len(np.unique(numbers, axis=0)) == 6


def test_generators_draw_the_same_on_identical_replicas(replicas: Any) -> None:
    """They went on to derive numbers from the replica's index; on all replicas they are those of the first now."""
    strategy = replicas(3)

    def numbers(identical: bool) -> np.ndarray:
        with strategy.scope():
            generator = tf.random.Generator.from_seed(1)
        reset_ipu_seed(5, experimental_identical_replicas=identical)
        return drawn(strategy, lambda: generator.uniform([4]), times=2)

    first = numbers(False)[:, :1]
    np.testing.assert_array_equal(numbers(True), np.repeat(first, 3, axis=1))


def test_keras_drops_other_units_out_on_each_replica_and_on_the_first_those_of_plain_keras(replicas: Any) -> None:
    import keras

    def dropout() -> Any:
        return keras.layers.Dropout(0.5, seed=7)

    plain_layer = dropout()
    plain_layer.build([64])

    plain = np.stack([plain_layer(tf.ones([64]), training=True) for _ in range(2)])
    strategy = replicas(3)
    with strategy.scope():
        layer = dropout()
    masks = drawn(strategy, lambda: layer(tf.ones([64]), training=True), times=2)
    np.testing.assert_array_equal(masks[:, 0], plain)
    assert len(np.unique(masks.reshape([6, -1]), axis=0)) == 6


def test_outside_of_programs_tensorflow_draws_as_ever() -> None:
    tf.random.set_seed(4)
    first = tf.random.uniform([3])
    tf.random.set_seed(4)

    @tf.function
    def draw() -> Any:
        return tf.random.uniform([3])

    np.testing.assert_array_equal(tf.random.uniform([3]), first)
    names = {operation.type for operation in draw.get_concrete_function().graph.get_operations()}
    assert "RandomUniform" in names
