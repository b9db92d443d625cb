"""What comes out of a pipeline's outfeed."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import pipelining
from tensorflow_ipu.pipelining import OptimizerFunctionOutput


@pytest.fixture
def dequeued(toy):
    """`dequeued(last, training, **options)` is what a pipeline of two stages leaves of eight micro-batches, in two passes."""

    def call(last, training, **options):
        toy.configure(2)
        strategy = ipu.IPUStrategy()
        with strategy.scope():
            v = tf.Variable(0.0)
            infeed = ipu.IPUInfeedQueue(tf.data.Dataset.range(8).map(lambda x: tf.cast(x, tf.float16)))
            outfeed = ipu.IPUOutfeedQueue()

            def optimizer_function(loss, *_):
                optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.0)
                return OptimizerFunctionOutput(optimizer, tf.cast(loss, tf.float32) + 100.0)

            @tf.function(jit_compile=True)
            def program():
                pipelining.pipeline(
                    [lambda x: x + tf.cast(v, tf.float16), last],
                    4,
                    repeat_count=2,
                    infeed_queue=infeed,
                    outfeed_queue=outfeed,
                    optimizer_function=optimizer_function if training else None,
                    **options,
                )

            infeed.initializer  # noqa: B018  (The access starts it.)
            strategy.run(program)
            return tf.nest.map_structure(lambda tensor: tensor.numpy(), outfeed.dequeue())

    return call


X = np.arange(8, dtype=np.float16)


def test_training_gives_a_list_of_the_outputs(dequeued):
    first, second = dequeued(lambda x: (x, 2 * x), training=True)
    np.testing.assert_array_equal(first, X)
    np.testing.assert_array_equal(second, 2 * X)


def test_a_mask_leaves_outputs_out(dequeued):
    (third,) = dequeued(lambda x: (x, 2 * x, 3 * x), training=True, outfeed_mask=[True, True, False])
    np.testing.assert_array_equal(third, 3 * X)


def test_the_loss_comes_bare(dequeued):
    loss = dequeued(lambda x: (x, 2 * x), training=True, outfeed_loss=True)
    np.testing.assert_array_equal(loss, X.astype(np.float32) + 100)


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (lambda x: x, X),
        (lambda x: {"a": x, "b": (x, 2 * x)}, {"a": X, "b": (X, 2 * X)}),
        (lambda x: (x, 2 * x), [X, 2 * X]),
        (lambda x: [x], [X]),
    ],
)
def test_inference_gives_the_structure_that_the_last_stage_returned(dequeued, returned, expected):
    found = dequeued(returned, training=False, accumulate_outfeed_dtype=tf.float64)  # Of sums, and there are none.
    tf.nest.assert_same_structure(found, expected)
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


def test_an_accumulated_outfeed_has_the_sum_of_each_pass(dequeued):
    first, second = dequeued(lambda x: (x, 2 * x), training=True, accumulate_outfeed=True)
    np.testing.assert_array_equal(first, [6, 22])
    np.testing.assert_array_equal(second, [12, 44])
    assert first.dtype == np.float16


@pytest.mark.parametrize("dtype", [tf.float32, lambda tensor: tf.float32 if tensor.dtype == tf.float16 else None])
def test_an_accumulated_outfeed_sums_in_the_wanted_type(dequeued, dtype):
    # In float16, 2048 + 1 is 2048.
    (found,) = dequeued(lambda x: x + 2047, training=False, accumulate_outfeed=True, accumulate_outfeed_dtype=dtype)
    assert found.dtype == np.float32
    each = (X + np.float16(2047)).astype(np.float32)
    np.testing.assert_array_equal(found, [each[:4].sum(), each[4:].sum()])


@pytest.mark.parametrize(
    ("returned", "expected"),
    [(lambda x: x, [[6, 22]]), (lambda x: {"a": x, "b": (x, 2 * x)}, {"a": [6, 22], "b": ([6, 22], [12, 44])})],
)
def test_an_accumulated_result_of_inference_is_indexed_as_several_are(dequeued, returned, expected):
    of_the_result = {"accumulate_outfeed_dtype": lambda tensor: None}
    found = dequeued(returned, training=False, accumulate_outfeed=True, **of_the_result)
    assert {part.dtype for part in tf.nest.flatten(found)} == {np.dtype(np.float16)}
    assert tf.nest.map_structure(np.ndarray.tolist, found) == expected


def test_an_accumulated_loss_has_one_value_a_pass(dequeued):
    loss = dequeued(lambda x: x, training=True, outfeed_loss=True, accumulate_outfeed=True)
    np.testing.assert_array_equal(loss, [406, 422])
