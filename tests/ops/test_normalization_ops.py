"""Normalisation as functions, of images, and over neighbouring channels."""

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.ops.image_ops import normalise_image
from tensorflow_ipu.ops.normalization_ops import group_norm, instance_norm, layer_norm

X = np.random.default_rng(0).normal(2, 3, size=[2, 3, 4, 6]).astype(np.float32)
FUNCTIONS = [group_norm, layer_norm, instance_norm]


def by_definition(x, groups_of_channels, epsilon=1.53e-5):
    out = np.empty_like(x)
    for channels in groups_of_channels:
        part = x[..., channels]
        mean, variance = part.mean((1, 2, 3), keepdims=True), part.var((1, 2, 3), keepdims=True)
        out[..., channels] = (part - mean) / np.sqrt(variance + epsilon)
    return out


GROUPS = {
    "strided": (lambda **kw: lambda x: group_norm(x, 3, **kw), [[0, 3], [1, 4], [2, 5]]),
    "two": (lambda **kw: lambda x: group_norm(x, **kw), [[0, 2, 4], [1, 3, 5]]),
    "blocks": (lambda **kw: lambda x: group_norm(x, 3, strided_channel_grouping=False, **kw), [[0, 1], [2, 3], [4, 5]]),
    "layer": (lambda **kw: lambda x: layer_norm(x, **kw), [[0, 1, 2, 3, 4, 5]]),
    "instance": (lambda **kw: lambda x: instance_norm(x, **kw), [[0], [1], [2], [3], [4], [5]]),
}


@pytest.mark.parametrize("name", GROUPS)
def test_groups_are_those_of_the_definition(name):
    make, groups = GROUPS[name]
    function = make(center=False, scale=False)
    assert np.allclose(function(X), by_definition(X, groups), atol=1e-4)
    assert np.allclose(tf.function(function, jit_compile=True)(X), by_definition(X, groups), atol=1e-4)
    result = make(center=False, scale=False, channels_axis=1)(np.transpose(X, [0, 3, 1, 2]))
    assert np.allclose(np.transpose(result, [0, 2, 3, 1]), by_definition(X, groups), atol=1e-4)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_parameters_are_variables_of_the_scope_that_train_and_are_reused(function):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        initial = {"beta": tf.compat.v1.constant_initializer(2.0), "gamma": tf.compat.v1.constant_initializer(3.0)}
        first = function(tf.constant(X), param_initializers=initial, scope="norm")
        second = function(tf.constant(X), reuse=True, scope="norm", training=False)
        names = {variable.op.name for variable in tf.compat.v1.trainable_variables()}
        assert names == {"norm/beta", "norm/gamma"}
        bare = function(tf.constant(X), center=False, scale=False)
        gradients = tf.gradients(tf.reduce_sum(tf.square(first)), tf.compat.v1.trainable_variables())
        session.run(tf.compat.v1.global_variables_initializer())
        first, second, bare, gradients = session.run((first, second, bare, gradients))
    assert np.allclose(first, bare * 3 + 2, atol=1e-4)
    assert np.array_equal(first, second)
    assert [gradient.shape for gradient in gradients] == [(6,), (6,)]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_parameters_go_to_the_collections_asked_for_and_what_has_no_channels_is_refused(function, refused):
    with tf.Graph().as_default():
        function(tf.constant(X), variables_collections=["mine"], trainable=False)
        assert len(tf.compat.v1.get_collection("mine")) == 2
        assert not tf.compat.v1.trainable_variables()
    for axis, message in ((4, "out of bounds"), (-5, "out of bounds"), (2, r"must be 1 .* or -1"), (0, "must be 1")):
        refused(ValueError, message, function, tf.constant(X), channels_axis=axis)
    bare = tf.function(lambda x: function(x, center=False, scale=False))
    for shape, words in ((None, "the rank of `inputs`"), ([2, None], "the number of channels of `inputs`")):
        refused(ValueError, f"{words} must be known", bare.get_concrete_function, tf.TensorSpec(shape))


def test_groups_and_parameters_that_cannot_be_are_refused(refused):
    for groups, words in ((4, "must divide"), (7, "from 1 to"), (0, "from 1 to")):
        refused(ValueError, words, group_norm, tf.constant(X), groups)
    refused(ValueError, "`param_initializers`", group_norm, tf.constant(X), param_initializers={"mean": None})


OFFSETS, SCALES = [0.5, 0.25, 0.125], [2.0, 4.0, 8.0]


@pytest.mark.parametrize(
    ("dtype", "shape"), [(np.uint8, [2, 4, 3]), (np.float16, [5, 3]), (np.float32, [2, 1, 2, 4, 3])]
)
def test_channels_are_normalised_and_a_fourth_is_added(dtype, shape, strategy):
    image = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    program = tf.function(lambda x: normalise_image(x, OFFSETS, SCALES, 1 / 16), jit_compile=True)
    result = strategy.run(program, [tf.constant(image)])
    assert result.dtype == (np.float16 if dtype == np.uint8 else dtype)
    assert np.array_equal(result[..., :3], (image.astype(np.float32) / 16 - OFFSETS) * SCALES)
    assert not np.any(result[..., 3])


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((tf.ones([3]), OFFSETS, SCALES), ValueError, r"`image` must have two dimensions or more.* but has \(3,\)"),
        ((tf.ones([2, 3]), OFFSETS, SCALES, 0), ValueError, "`scale` must not be 0"),
        ((tf.ones([2, 3], tf.int32), OFFSETS, SCALES), TypeError, "`image` must be uint8, float16 or float32"),
        ((tf.ones([2, 4]), OFFSETS, SCALES[:2]), ValueError, r"2 faults:[^$]*three channels[^$]*`channel_scales`"),
    ],
)
def test_images_and_numbers_that_do_not_fit_are_refused(arguments, kind, message, refused):
    refused(kind, message, normalise_image, *arguments)


INPUT = tf.random.stateless_normal([2, 3, 3, 8], seed=[1, 2])


def _with_gradient(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.nn.local_response_normalization(x, depth_radius=2, bias=1.5, alpha=0.5, beta=0.7)
        loss = tf.reduce_sum(tf.cast(y, tf.float32) ** 3)
    return y, tape.gradient(loss, x)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(tf.float32, 1e-5), (tf.float16, 2e-3), (tf.bfloat16, 2e-2)], ids=["f32", "f16", "bf16"]
)
def test_it_and_its_gradient_are_those_of_tensorflow(dtype, tolerance):
    x = tf.cast(INPUT, dtype)
    found = ipu.IPUStrategy().run(tf.function(_with_gradient, jit_compile=True), [x])
    expected = _with_gradient(tf.cast(x, tf.float32))  # The host has no kernel for bfloat16.
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        np.testing.assert_allclose(tf.cast(one, tf.float32), other, rtol=tolerance, atol=tolerance)


def test_it_rounds_at_random_where_asked():
    @tf.function(jit_compile=True)
    def program(x):
        with ipu.scopes.stochastic_rounding(True):
            return tf.nn.local_response_normalization(x)

    strategy = ipu.IPUStrategy()
    first, second = (strategy.run(program, [tf.cast(INPUT, tf.float16)]) for _ in range(2))
    assert tf.reduce_any(first != second)
    np.testing.assert_allclose(first, second, rtol=2e-3, atol=1e-6)
