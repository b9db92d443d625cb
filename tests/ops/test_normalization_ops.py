"""Normalization functions, image normalization, and local response normalization."""

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.ops.image_ops import normalise_image
from tensorflow_ipu.ops.normalization_ops import group_norm, instance_norm, layer_norm

X = np.random.default_rng(0).normal(2, 3, size=[2, 3, 4, 6]).astype(np.float32)
FUNCTIONS = [group_norm, layer_norm, instance_norm]
OFFSETS, SCALES = [0.5, 0.25, 0.125], [2.0, 4.0, 8.0]


def by_definition(x, groups_of_channels, epsilon=1.53e-5):
    out = np.empty_like(x)
    for channels in groups_of_channels:
        part = x[..., channels]
        mean, variance = part.mean((1, 2, 3), keepdims=True), part.var((1, 2, 3), keepdims=True)
        out[..., channels] = (part - mean) / np.sqrt(variance + epsilon)
    return out


GROUPS = [
    (group_norm, {"groups": 3}, [[0, 3], [1, 4], [2, 5]]),
    (group_norm, {}, [[0, 2, 4], [1, 3, 5]]),
    (group_norm, {"groups": 3, "strided_channel_grouping": False}, [[0, 1], [2, 3], [4, 5]]),
    (layer_norm, {}, [[0, 1, 2, 3, 4, 5]]),
    (instance_norm, {}, [[0], [1], [2], [3], [4], [5]]),
]


def test_groups_are_those_of_the_definition():
    def program(x, **options):
        return [
            function(x, center=False, scale=False, **group_options, **options) for function, group_options, _ in GROUPS
        ]

    first = program(np.transpose(X, [0, 3, 1, 2]), channels_axis=1)
    turned = [tf.transpose(result, [0, 2, 3, 1]) for result in first]
    for results in (program(X), tf.function(program, jit_compile=True)(X), turned):
        for result, (*_, groups) in zip(results, GROUPS, strict=True):
            assert np.allclose(result, by_definition(X, groups), atol=1e-4)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_parameters_are_variables_of_the_scope_and_collections_that_train_and_are_reused(function, refused):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        initial = {"beta": tf.compat.v1.constant_initializer(2.0), "gamma": tf.compat.v1.constant_initializer(3.0)}
        first = function(tf.constant(X), param_initializers=initial, scope="norm")
        second = function(tf.constant(X), reuse=True, scope="norm", training=False)
        bare = function(tf.constant(X), center=False, scale=False)
        function(tf.constant(X), variables_collections=["mine"], trainable=False)
        assert len(tf.compat.v1.get_collection("mine")) == 2
        trainable = tf.compat.v1.trainable_variables()
        assert {variable.op.name for variable in trainable} == {"norm/beta", "norm/gamma"}
        gradients = tf.gradients(tf.reduce_sum(tf.square(first)), trainable)
        session.run(tf.compat.v1.global_variables_initializer())
        first, second, bare, gradients = session.run((first, second, bare, gradients))
    assert np.allclose(first, bare * 3 + 2, atol=1e-4)
    assert np.array_equal(first, second)
    assert [gradient.shape for gradient in gradients] == [(6,), (6,)]
    for axis, message in ((4, "out of bounds"), (-5, "out of bounds"), (2, r"must be 1 .* or -1"), (0, "must be 1")):
        refused(ValueError, message, function, tf.constant(X), channels_axis=axis)
    unknown = tf.function(lambda x: function(x, center=False, scale=False))
    for shape, message in ((None, "the rank of `inputs`"), ([2, None], "the number of channels of `inputs`")):
        refused(ValueError, f"{message} must be known", unknown.get_concrete_function, tf.TensorSpec(shape))


def test_groups_parameters_images_and_numbers_that_cannot_be_are_refused(refused):
    for groups, message in ((4, "must divide"), (7, "from 1 to"), (0, "from 1 to")):
        refused(ValueError, message, group_norm, tf.constant(X), groups)
    refused(ValueError, "`param_initializers`", group_norm, tf.constant(X), param_initializers={"mean": None})
    invalid = tf.errors.InvalidArgumentError
    errors = r"2 faults:[^$]*The image has 4 channels, expected 3[^$]*`channel_scales` must be the same size as .* channels 3"
    for arguments, kind, message in (
        ((tf.ones([3]), OFFSETS, SCALES), invalid, r"`image` must have two dimensions or more.* shape \(3,\)"),
        ((tf.ones([2, 2]), OFFSETS, SCALES), invalid, "^The image has 2 channels, expected 3"),
        ((tf.ones([2, 3]), OFFSETS, SCALES, 0), ValueError, "`scale` must not be 0"),
        ((tf.ones([2, 3], tf.int32), OFFSETS, SCALES), TypeError, "`image` must be uint8, float16 or float32"),
        ((tf.ones([2, 4]), OFFSETS, SCALES[:2]), invalid, errors),
    ):
        refused(kind, message, normalise_image, *arguments)


def test_channels_are_normalised_and_a_fourth_is_added(strategy):
    shapes = {np.uint8: [2, 4, 3], np.float16: [5, 3], np.float32: [2, 1, 2, 4, 3]}
    images = [np.arange(np.prod(shape)).reshape(shape).astype(dtype) for dtype, shape in shapes.items()]
    program = tf.function(lambda *xs: [normalise_image(x, OFFSETS, SCALES, 1 / 16) for x in xs], jit_compile=True)
    for image, result in zip(images, strategy.run(program, list(map(tf.constant, images))), strict=True):
        assert result.dtype == (np.float16 if image.dtype == np.uint8 else image.dtype)
        assert np.array_equal(result[..., :3], (image.astype(np.float32) / 16 - OFFSETS) * SCALES)
        assert not np.any(result[..., 3])


INPUT = tf.random.stateless_normal([2, 3, 3, 8], seed=[1, 2])


def _with_gradient(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.nn.local_response_normalization(x, depth_radius=2, bias=1.5, alpha=0.5, beta=0.7)
        loss = tf.reduce_sum(tf.cast(y, tf.float32) ** 3)
    return y, tape.gradient(loss, x)


def test_response_normalization_and_its_gradient_are_those_of_tensorflow_and_round_at_random_where_asked(strategy):
    tolerances = {tf.float32: 1e-5, tf.float16: 2e-3, tf.bfloat16: 2e-2}
    inputs = [tf.cast(INPUT, dtype) for dtype in tolerances]

    @tf.function(jit_compile=True)
    def program(*xs):
        with ipu.scopes.stochastic_rounding(True):
            rounded = tf.nn.local_response_normalization(xs[1])
        return rounded, [_with_gradient(x) for x in xs]

    (first, all_results), (second, _) = (strategy.run(program, inputs) for _ in range(2))
    assert tf.reduce_any(first != second)
    np.testing.assert_allclose(first, second, rtol=2e-3, atol=1e-6)
    for x, results, (dtype, tolerance) in zip(inputs, all_results, tolerances.items(), strict=True):
        expected = _with_gradient(tf.cast(x, tf.float32))  # The host has no kernel for bfloat16.
        for result, reference in zip(results, expected, strict=True):
            assert result.dtype == dtype
            np.testing.assert_allclose(tf.cast(result, tf.float32), reference, rtol=tolerance, atol=tolerance)
