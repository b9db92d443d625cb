"""Normalisation as functions, in graphs of TensorFlow 1 and without parameters anywhere."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

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
def test_parameters_go_to_the_collections_asked_for(function):
    with tf.Graph().as_default():
        function(tf.constant(X), variables_collections=["mine"], trainable=False)
        assert len(tf.compat.v1.get_collection("mine")) == 2
        assert not tf.compat.v1.trainable_variables()


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    ("axis", "message"), [(4, "out of bounds"), (-5, "out of bounds"), (2, r"must be 1 .* or -1"), (0, "must be 1")]
)
def test_axis_that_holds_no_channels_is_refused(function, axis, message):
    with pytest.raises(ValueError, match=message):
        function(tf.constant(X), channels_axis=axis)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_shapes_that_are_not_known_are_refused(function):
    for spec, message in (
        (tf.TensorSpec(None), "the rank of `inputs` must be known"),
        (tf.TensorSpec([2, None]), "the number of channels of `inputs` must be known"),
    ):
        with pytest.raises(ValueError, match=message):
            tf.function(
                lambda x: function(x, center=False, scale=False), input_signature=[spec]
            ).get_concrete_function()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"groups": 4}, "must divide"),
        ({"groups": 7}, "from 1 to"),
        ({"groups": 0}, "from 1 to"),
        ({"param_initializers": {"mean": None}}, "`param_initializers`"),
    ],
)
def test_groups_and_parameters_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        group_norm(tf.constant(X), **arguments)
