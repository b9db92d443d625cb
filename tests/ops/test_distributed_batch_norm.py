"""Batch normalization over groups of replicas, against TensorFlow over the joined batches of a group."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import compat
from tensorflow_ipu.ops.cross_replica_ops import cross_replica_sum
from tensorflow_ipu.ops.replication_ops import replication_index

REPLICAS, BATCH, FEATURES = 4, 2, 3
RANDOM = np.random.default_rng(5)
# The images of the replicas differ much, so that the statistics of fewer replicas than a group would be far off.
IMAGES = (RANDOM.normal(size=[4, BATCH, 3, 2, FEATURES]) + 3 * np.arange(4).reshape(-1, 1, 1, 1, 1)).astype("f")
WEIGHTS = RANDOM.normal(size=IMAGES.shape).astype("f")
SCALE, OFFSET, MOVING = (RANDOM.normal(size=[FEATURES]).astype("f") for _ in range(3))

raw: Any = tf.raw_ops


@pytest.fixture
def configured(replicas):
    """`configured(4, 2)` returns the strategy of four replicas that normalize in groups of two."""
    name = "norms__experimental__distributed_batch_norm_replica_group_size"
    return lambda count, group: replicas(count, **{name: group})


def of_compat(x, scale, offset):
    return tf.compat.v1.nn.fused_batch_norm(x, scale, offset, MOVING, abs(MOVING), exponential_avg_factor=0.3)


def of_raw(x, scale, offset, data_format="NCHW"):
    moving = {"mean": MOVING, "variance": abs(MOVING)}
    axes, back = ([0, 3, 1, 2], [0, 2, 3, 1]) if data_format == "NCHW" else ([0, 1, 2, 3], [0, 1, 2, 3])
    x = tf.transpose(x, axes)
    y, mean, variance, *_ = raw.FusedBatchNormV3(x=x, scale=scale, offset=offset, data_format=data_format, **moving)
    return tf.transpose(y, back), mean, variance


def step(normalize, x, weights, scale, offset):
    """Returns the results of a normalization, and the gradients of images, scale and offset."""
    values = [tf.convert_to_tensor(value) for value in (x, scale, offset)]
    with tf.GradientTape() as tape:
        tape.watch(values)
        y, mean, variance = normalize(*values)
        loss = tf.reduce_sum(weights * tf.sin(y))
    return [y, mean, variance, *tape.gradient(loss, values)]


def joined(array, group):
    return array.reshape(-1, group * BATCH, *array.shape[2:])


@pytest.mark.parametrize(("count", "group", "normalize"), [(2, 1, of_compat), (4, 2, of_compat), (4, 4, of_raw)])
def test_groups_of_replicas_normalize_as_one_batch_of_theirs(count, group, normalize, configured):
    strategy = configured(count, group)
    outfeed = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program():
        inputs = [tf.gather(tf.constant(array), replication_index()) for array in (IMAGES, WEIGHTS)]
        results: list[Any] = step(normalize, *inputs, SCALE, OFFSET)
        outfeed.enqueue([*results[:4], *map(cross_replica_sum, results[4:])])

    strategy.run(program)
    y, mean, variance, of_images, of_scale, of_offset = (value.numpy()[0] for value in outfeed.dequeue())
    # On the host, TensorFlow's kernel supports only one order of dimensions.
    reference = functools.partial(of_raw, data_format="NHWC") if normalize is of_raw else of_compat
    batches = zip(joined(IMAGES[:count], group), joined(WEIGHTS[:count], group), strict=True)
    of_groups = [step(reference, *batch, SCALE, OFFSET) for batch in batches]

    def check(actual, expected):
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5 * np.max(np.abs(expected)))

    for index, result in ((0, y), (3, of_images)):
        check(joined(result, group), [values[index] for values in of_groups])
    for index, result in ((1, mean), (2, variance)):
        check(result, np.repeat([values[index] for values in of_groups], group, axis=0))
    for index, result in ((4, of_scale), (5, of_offset)):
        check(result[0], sum(values[index].numpy() for values in of_groups))


def test_keras_layer_of_images_trains_with_the_statistics_of_its_group_and_others_with_their_own(configured):
    strategy = configured(2, 2)
    rows = IMAGES[:, :, 0, 0]
    with strategy.scope():
        layer, of_rows = keras.layers.BatchNormalization(), keras.layers.BatchNormalization()
        layer.build([None, 3, 2, FEATURES])
        of_rows.build([None, FEATURES])

    @tf.function(jit_compile=True)
    def program():
        x, weights, row = (tf.gather(tf.constant(array), replication_index()) for array in (IMAGES, WEIGHTS, rows))
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(weights * tf.sin(layer(x, training=True)))
        of_rows(row, training=True)
        gradients = tape.gradient(loss, [x, *layer.trainable_variables])
        return gradients[0], [cross_replica_sum(gradient) for gradient in gradients[1:]]

    results = tf.nest.flatten(strategy.run(program))
    reference, reference_of_rows = keras.layers.BatchNormalization(), keras.layers.BatchNormalization()
    [x], [weights] = joined(IMAGES[:2], 2), joined(WEIGHTS[:2], 2)
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(weights * tf.sin(reference(x, training=True)))
    gradients: list[Any] = tape.gradient(loss, [x, *reference.trainable_variables])
    reference_of_rows(rows[0], training=True)
    for actual, expected in zip(results, [gradients[0][:BATCH], *gradients[1:]], strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-5)
    variables, references = layer.variables + of_rows.variables, reference.variables + reference_of_rows.variables
    for actual, expected in zip(variables, references, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_another_size_of_groups_is_another_program_and_one_ipu_has_no_groups_of_two(configured, refused):
    @tf.function(jit_compile=True)
    def program():
        images = tf.gather(tf.constant(IMAGES), replication_index())
        return tf.compat.v1.nn.fused_batch_norm(images, SCALE, OFFSET)[1]

    means = [configured(2, group).run(program) for group in (1, 2)]
    np.testing.assert_allclose(means[0], IMAGES[0].mean((0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(means[1], IMAGES[:2].mean((0, 1, 2, 3)), rtol=1e-5)
    strategy = configured(1, 2)
    message = r"group_size=2` must divide the number of replicas, but the device has 1 replica: set it"
    refused(ValueError, message, strategy.run, program)
    by_constants = {"mean": MOVING, "variance": abs(MOVING), "is_training": False}
    infer = tf.function(
        lambda x: tf.compat.v1.nn.fused_batch_norm(x, SCALE, OFFSET, **by_constants)[0], jit_compile=True
    )
    assert strategy.run(infer, (tf.constant(IMAGES[0]),)).shape == IMAGES[0].shape


@pytest.mark.parametrize(("normalize", "group"), [(of_compat, 1), (functools.partial(of_raw, data_format="NHWC"), 2)])
def test_weights_in_half_precision_normalize_in_programs_as_wider_ones_that_are_rounded(normalize, group, configured):
    # TensorFlow's operation does not support float16 weights.
    strategy = configured(group, group)
    # All replicas have the same images, so that the statistics of a group are those of one replica.
    arguments = [tf.constant(array, tf.float16) for array in (IMAGES[0], WEIGHTS[0], SCALE, OFFSET)]
    results = strategy.run(tf.function(functools.partial(step, normalize), jit_compile=True), arguments)
    references = step(normalize, *[tf.cast(argument, tf.float32) for argument in arguments])
    samples = IMAGES[0][..., 0].size
    factors = [1, 1, (samples - 1) * group / (samples * group - 1), 1, 1, 1]  # The unbiased variance of a group.
    assert [result.dtype for result in results] == [tf.float16] * 6
    for actual, expected, factor in zip(results, references, factors, strict=True):
        np.testing.assert_allclose(actual, factor * expected, rtol=4e-3, atol=4e-3 * np.max(np.abs(expected)))


def test_weights_in_half_precision_normalize_outside_of_programs_while_old_scripts_may_run(refused):
    arguments = [tf.constant(array, tf.float16) for array in (IMAGES[0], SCALE, OFFSET)]
    normalize = tf.compat.v1.nn.fused_batch_norm
    compat.install()
    try:
        y, mean, _ = normalize(*arguments)
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            of_session = session.run(normalize(*map(tf.constant, map(np.array, arguments)))[0])
    finally:
        compat.uninstall()
    wide = [tf.cast(argument, tf.float32) for argument in arguments]
    np.testing.assert_allclose(y, normalize(*wide)[0], atol=4e-3)
    np.testing.assert_array_equal(of_session, y)
    assert (mean.dtype, of_session.dtype) == (tf.float16, np.float16)
    refused(tf.errors.InvalidArgumentError, "'U' of half is not in the list", normalize, *arguments)
