"""Elements pass through a program in order, and programs compute the same as plain TensorFlow."""

from __future__ import annotations

from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu

# Pytest limits the time of a test, because the first example of a kind compiles. A database would be written into the
# folder.
quick = hypothesis.settings(
    max_examples=10, deadline=None, database=None, derandomize=True, suppress_health_check=list(hypothesis.HealthCheck)
)


@quick
@hypothesis.given(
    runs=st.lists(st.tuples(st.sampled_from(["run", "dequeue", "iterate", "one"]), st.integers(0, 20)), max_size=12)
)
def test_reads_and_runs_in_any_order_give_one_stream(infeed_of, numbers, echo, runs):
    infeed, outfeed = infeed_of(numbers(1000)), ipu.IPUOutfeedQueue()
    echo(infeed, outfeed, 1)
    got: list[int] = []
    total = 1
    for action, n in runs:
        if action == "run":
            echo(infeed, outfeed, n)
            total += n
        elif action == "dequeue":
            got.extend(int(x) for x in outfeed.dequeue())
        elif action == "iterate":
            got.extend(int(x) for x in outfeed)
        else:
            got.extend(int(x) for _, x in zip(range(n), outfeed, strict=False))
    got.extend(int(x) for x in outfeed.dequeue())
    assert got == list(range(total))


@pytest.mark.parametrize("of", [1, 4])
def test_elements_are_whole_on_either_side_of_the_size_up_to_which_they_are_copied(of, replicas, infeed_of):
    # Small elements pass through the queue as a copy of their bytes, larger ones by reference.
    strategy = replicas(of)
    count, sizes = 300 * of, (1, 254, 255, 256, 5000)
    random = np.random.default_rng(0)
    rows = [(np.arange(count, dtype=np.int32), random.random((count, floats), np.float32)) for floats in sizes]
    infeeds = [infeed_of(tf.data.Dataset.from_tensor_slices(matrix)) for matrix in rows]
    outfeeds = [ipu.IPUOutfeedQueue() for _ in sizes]

    @tf.function(jit_compile=True)
    def program(n: Any) -> None:
        i = 0
        while i < n:
            for infeed, outfeed in zip(infeeds, outfeeds, strict=True):
                outfeed.enqueue(infeed._dequeue())
            i += 1

    for n in (100, 200):
        strategy.run(program, (tf.constant(n),))
    lanes = () if of == 1 else (of,)
    for outfeed, matrix in zip(outfeeds, rows, strict=True):
        for actual, expected in zip(outfeed.dequeue(), matrix, strict=True):
            np.testing.assert_array_equal(actual, expected.reshape(300, *lanes, *expected.shape[1:]))


def test_training_loop_is_bit_exact_with_the_same_loop_on_tensorflows_own_data(infeed_of):
    random = np.random.default_rng(3)
    features = random.random((32, 16, 8), np.float32)
    labels = random.random((32, 16, 2), np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((features, labels))
    start = random.random((8, 2), np.float32)

    def step(weights: Any, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.tanh(x @ weights) - y) ** 2)
        weights.assign_sub(0.5 * tape.gradient(loss, weights))
        return loss

    host_weight = tf.Variable(start)
    plain_step = tf.function(lambda x, y: step(host_weight, x, y), jit_compile=True)
    plain_losses = [plain_step(x, y).numpy() for x, y in dataset]

    strategy, outfeed = ipu.IPUStrategy(), ipu.IPUOutfeedQueue()
    with strategy.scope():
        weight = tf.Variable(start)
    infeed = infeed_of(dataset)

    @tf.function(jit_compile=True)
    def program() -> None:
        for _ in tf.range(32):
            x, y = infeed._dequeue()
            outfeed.enqueue(step(weight, x, y))

    strategy.run(program)
    np.testing.assert_array_equal(outfeed.dequeue(), plain_losses)
    np.testing.assert_array_equal(weight, host_weight)
