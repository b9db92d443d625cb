"""Batch normalization whose statistics are those of several replicas, against TensorFlow over their batches together."""

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
# Each replica's own are far from the others', so that statistics of less than a group are far off.
IMAGES = (RANDOM.normal(size=[4, BATCH, 3, 2, FEATURES]) + 3 * np.arange(4).reshape(-1, 1, 1, 1, 1)).astype("f")
WEIGHTS = RANDOM.normal(size=IMAGES.shape).astype("f")
SCALE, OFFSET, MOVING = (RANDOM.normal(size=[FEATURES]).astype("f") for _ in range(3))

raw: Any = tf.raw_ops


@pytest.fixture
def configured(replicas):
    """`configured(4, 2)` is the strategy of four replicas that normalize in groups of two."""
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
    """What a normalization gives, and its gradients of images, scale and offset."""
    values = [tf.convert_to_tensor(one) for one in (x, scale, offset)]
    with tf.GradientTape() as tape:
        tape.watch(values)
        y, mean, variance = normalize(*values)
        loss = tf.reduce_sum(weights * tf.sin(y))
    return [y, mean, variance, *tape.gradient(loss, values)]


def together(array, group):
    return array.reshape(-1, group * BATCH, *array.shape[2:])


@pytest.mark.parametrize(("count", "group", "normalize"), [(2, 1, of_compat), (4, 2, of_compat), (4, 4, of_raw)])
def test_groups_of_replicas_normalize_as_one_batch_of_theirs(count, group, normalize, configured):
    strategy = configured(count, group)
    outfeed = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program():
        own = [tf.gather(tf.constant(array), replication_index()) for array in (IMAGES, WEIGHTS)]
        found: list[Any] = step(normalize, *own, SCALE, OFFSET)
        outfeed.enqueue([*found[:4], *map(cross_replica_sum, found[4:])])

    strategy.run(program)
    y, mean, variance, of_images, of_scale, of_offset = (one.numpy()[0] for one in outfeed.dequeue())
    # On the host, TensorFlow's kernel has but one order of dimensions.
    plain = functools.partial(of_raw, data_format="NHWC") if normalize is of_raw else of_compat
    batches = zip(together(IMAGES[:count], group), together(WEIGHTS[:count], group), strict=True)
    wanted = [step(plain, *both, SCALE, OFFSET) for both in batches]

    def check(found, expected):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5 * np.max(np.abs(expected)))

    for at, result in ((0, y), (3, of_images)):
        check(together(result, group), [one[at] for one in wanted])
    for at, result in ((1, mean), (2, variance)):
        check(result, np.repeat([one[at] for one in wanted], group, axis=0))
    for at, result in ((4, of_scale), (5, of_offset)):
        check(result[0], sum(one[at].numpy() for one in wanted))


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
        return gradients[0], [cross_replica_sum(one) for one in gradients[1:]]

    found = tf.nest.flatten(strategy.run(program))
    plain, plain_rows = keras.layers.BatchNormalization(), keras.layers.BatchNormalization()
    [x], [weights] = together(IMAGES[:2], 2), together(WEIGHTS[:2], 2)
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(weights * tf.sin(plain(x, training=True)))
    wanted: list[Any] = tape.gradient(loss, [x, *plain.trainable_variables])
    plain_rows(rows[0], training=True)
    for one, other in zip(found, [wanted[0][:BATCH], *wanted[1:]], strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-5)
    for one, other in zip(layer.variables + of_rows.variables, plain.variables + plain_rows.variables, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_another_size_of_groups_is_another_program_and_one_ipu_has_no_groups_of_two(configured, refused):
    @tf.function(jit_compile=True)
    def program():
        own = tf.gather(tf.constant(IMAGES), replication_index())
        return tf.compat.v1.nn.fused_batch_norm(own, SCALE, OFFSET)[1]

    means = [configured(2, group).run(program) for group in (1, 2)]
    np.testing.assert_allclose(means[0], IMAGES[0].mean((0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(means[1], IMAGES[:2].mean((0, 1, 2, 3)), rtol=1e-5)
    strategy = configured(1, 2)
    words = r"group_size=2` does not divide the replicas of a device of 1 IPU: set it"
    refused(ValueError, words, strategy.run, program)
    by_constants = {"mean": MOVING, "variance": abs(MOVING), "is_training": False}
    infer = tf.function(
        lambda x: tf.compat.v1.nn.fused_batch_norm(x, SCALE, OFFSET, **by_constants)[0], jit_compile=True
    )
    assert strategy.run(infer, (tf.constant(IMAGES[0]),)).shape == IMAGES[0].shape


@pytest.mark.parametrize(("normalize", "group"), [(of_compat, 1), (functools.partial(of_raw, data_format="NHWC"), 2)])
def test_weights_in_half_precision_normalize_in_programs_as_wider_ones_that_are_rounded(normalize, group, configured):
    # TensorFlow's operation has no float16 for them.
    strategy = configured(group, group)
    # All replicas have the same, so that their groups have statistics of one.
    arguments = [tf.constant(one, tf.float16) for one in (IMAGES[0], WEIGHTS[0], SCALE, OFFSET)]
    found = strategy.run(tf.function(functools.partial(step, normalize), jit_compile=True), arguments)
    wanted = step(normalize, *[tf.cast(one, tf.float32) for one in arguments])
    samples = IMAGES[0][..., 0].size
    factors = [1, 1, (samples - 1) * group / (samples * group - 1), 1, 1, 1]  # The unbiased variance of a group.
    assert [one.dtype for one in found] == [tf.float16] * 6
    for one, other, factor in zip(found, wanted, factors, strict=True):
        np.testing.assert_allclose(one, factor * other, rtol=4e-3, atol=4e-3 * np.max(np.abs(other)))


def test_weights_in_half_precision_normalize_outside_of_programs_while_old_scripts_may_run(refused):
    arguments = [tf.constant(one, tf.float16) for one in (IMAGES[0], SCALE, OFFSET)]
    plain = tf.compat.v1.nn.fused_batch_norm
    compat.install()
    try:
        y, mean, _ = plain(*arguments)
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            of_session = session.run(plain(*map(tf.constant, map(np.array, arguments)))[0])
    finally:
        compat.uninstall()
    wide = [tf.cast(one, tf.float32) for one in arguments]
    np.testing.assert_allclose(y, plain(*wide)[0], atol=4e-3)
    np.testing.assert_array_equal(of_session, y)
    assert (mean.dtype, of_session.dtype) == (tf.float16, np.float16)
    refused(tf.errors.InvalidArgumentError, "'U' of half is not in the list", plain, *arguments)
