"""Layers that kernels of the host compute, in the stages of a pipeline."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import pipelining
from tensorflow_ipu.pipelining import PipelineSchedule, RecomputationMode
from tensorflow_ipu.replicas import _host_kernels

COUNT, RATE = 6, 0.1
RANDOM = np.random.default_rng(3)
IMAGES = RANDOM.normal(size=[COUNT, 2, 12, 12, 3]).astype(np.float32)
LABELS = RANDOM.normal(size=[COUNT, 2, 4]).astype(np.float32)
WEIGHTS = [RANDOM.normal(size=size, scale=0.3).astype(np.float32) for size in ([3, 3, 3, 8], [3, 3, 8, 4], [36, 4])]


def first(weights, images):
    return tf.nn.max_pool(tf.nn.relu(tf.nn.conv2d(images, weights[0], 1, "SAME")), 2, 2, "VALID")


def second(weights, features):
    """A stage that has gradients in it, so that its backward pass has second derivatives."""
    with tf.GradientTape() as tape:
        tape.watch(features)
        result = tf.nn.conv2d(features, weights[1], 2, "SAME")
        total = tf.reduce_sum(tf.sin(tf.nn.max_pool(result, 2, 1, "SAME")))
    change = tf.nn.conv2d(tape.gradient(total, features), weights[1], 2, "SAME")
    kept = tf.nn.experimental.stateless_dropout(result + 0.1 * change, 0.3, [1, 2])
    return tf.reshape(kept, [2, -1])


def loss_of(weights, features, labels):
    return tf.reduce_mean(tf.square(features @ weights[2] - labels))


@pytest.mark.parametrize("mode", [None, RecomputationMode.RecomputeThenBackpropagate])
def test_convolutional_stages_train_as_in_tensorflow_without_xla(mode, strategy):
    with strategy.scope():
        variables = [tf.Variable(value) for value in WEIGHTS]
        infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)))
        outfeed = ipu.IPUOutfeedQueue()

        @tf.function(jit_compile=True)
        def program():
            pipelining.pipeline(
                [
                    lambda images, labels: (first(variables, images), labels),
                    lambda features, labels: (second(variables, features), labels),
                    lambda features, labels: loss_of(variables, features, labels),
                ],
                gradient_accumulation_count=COUNT,
                infeed_queue=infeed,
                outfeed_queue=outfeed,
                optimizer_function=lambda loss: pipelining.OptimizerFunctionOutput(
                    tf.compat.v1.train.GradientDescentOptimizer(RATE), loss
                ),
                pipeline_schedule=PipelineSchedule.Grouped,
                recomputation_mode=mode,
                reduction_method="mean",
            )

        infeed.initializer  # noqa: B018  (The access starts it.)
        with _host_kernels.wherever_known():
            strategy.run(program)
    plain = [tf.constant(value) for value in WEIGHTS]
    with tf.GradientTape() as tape:
        tape.watch(plain)
        losses = [
            loss_of(plain, second(plain, first(plain, images)), labels)
            for images, labels in zip(IMAGES, LABELS, strict=True)
        ]
        mean = tf.add_n(losses) / COUNT
    upstream: Any = tape.gradient(mean, plain)
    wanted = [value - RATE * gradient for value, gradient in zip(plain, upstream, strict=True)]
    np.testing.assert_allclose(outfeed.dequeue()[0], losses, rtol=1e-5)
    for one, other in zip(variables, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


# XLA:CPU took forty times as long for them: it looks for what it can bring into that form outside of loops alone.
def test_without_kernels_of_the_host_stages_have_the_form_that_xla_has_fast_code_for(compiled_text):
    strategy = ipu.IPUStrategy(host_kernels=False)
    with strategy.scope():
        weights = [tf.Variable(tf.ones([3, 3, 3, 3])) for _ in range(2)]
        infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors(tf.ones([2, 8, 8, 3])).repeat())

    @tf.function(jit_compile=True)
    def program():
        pipelining.pipeline(
            [
                lambda images: tf.nn.conv2d(images, weights[0], 1, "SAME"),
                lambda features: tf.reduce_sum(tf.sin(tf.nn.conv2d(features, weights[1], 2, "SAME"))),
            ],
            gradient_accumulation_count=4,
            infeed_queue=infeed,
            outfeed_queue=ipu.IPUOutfeedQueue(),
            optimizer_function=lambda loss: pipelining.OptimizerFunctionOutput(
                tf.compat.v1.train.GradientDescentOptimizer(RATE), loss
            ),
        )

    orders = re.findall(r" convolution\(.*dim_labels=(\S+?)[,\s]", compiled_text(strategy, program))
    assert len(orders) >= 5  # Each stage, and its gradients; those of the images are nobody's.
    assert set(orders) == {"b01f_01io->b01f"}
