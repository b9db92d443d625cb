"""Activations and sampled losses, compared with TensorFlow's."""

import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu.ops import nn_ops

X = tf.constant(np.linspace(-5, 5, 24).reshape(4, 6), tf.float32)
ACTIVATIONS = {
    "gelu": (nn_ops.gelu, lambda x: tf.nn.gelu(x, approximate=True)),
    "exact gelu": (lambda x: nn_ops.gelu(x, approximate=False), lambda x: tf.nn.gelu(x, approximate=False)),
    "hard sigmoid": (nn_ops.hard_sigmoid, lambda x: tf.maximum(0.0, tf.minimum(1.0, 0.2 * x + 0.5))),
    "swish": (nn_ops.swish, lambda x: x * tf.sigmoid(x)),
    "softmax": (nn_ops.softmax, tf.nn.softmax),
    "stable softmax": (lambda x: nn_ops.softmax(x, stable=True), tf.nn.softmax),
}


def result_and_gradients(function, *tensors):
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        result = function(*tensors)
        loss = tf.reduce_sum(tf.sin(result))
    return result, *tape.gradient(loss, tensors)


def test_activations_and_gradients_are_those_of_tensorflow():
    def all_of(index):
        return [result_and_gradients(pair[index], X) for pair in ACTIVATIONS.values()]

    for actual in (all_of(0), tf.function(lambda: all_of(0), jit_compile=True)()):
        for result, reference in zip(tf.nest.flatten(actual), tf.nest.flatten(all_of(1)), strict=True):
            np.testing.assert_allclose(result, reference, rtol=1e-5, atol=1e-5)  # Processors differ in their tanh.
    for activation, _ in ACTIVATIONS.values():
        assert activation(tf.cast(X, tf.float16)).dtype == tf.float16


def test_gelu_of_large_half_precision_has_a_gradient():
    x = tf.constant([300.0, 6e4, 1.0, -1.0, -300.0], tf.float16)

    def gradients(gelu, x):
        results = []
        for approximate in (True, False):
            with tf.GradientTape() as tape:
                tape.watch(x)
                result = gelu(x, approximate)
            results.append(tape.gradient(result, x))
        return results

    expected = gradients(tf.nn.gelu, tf.cast(x, tf.float32))
    for actual in (gradients(nn_ops.gelu, x), tf.function(lambda: gradients(nn_ops.gelu, x), jit_compile=True)()):
        np.testing.assert_allclose(actual, expected, rtol=2e-3, atol=2e-3)


def test_convolutions_at_once_compute_what_they_compute(refused):
    def plain(x, w):
        return tf.nn.conv2d(x, w, 1, "SAME"), tf.nn.conv2d(x, 2 * w, 1, "SAME")

    x, w = tf.ones([1, 4, 4, 2]), tf.ones([3, 3, 2, 2])
    for decorator in (nn_ops.multi_conv, nn_ops.multi_conv(options={"planType": "parallel"})):
        for result, reference in zip(decorator(plain)(x, w), plain(x, w), strict=True):
            assert np.array_equal(result, reference)
        assert decorator(plain).__name__ == "plain"
    refused(TypeError, "`options` must be a dict", nn_ops.multi_conv, options="fast")
    refused(TypeError, "`stable`", nn_ops.softmax, X, stable=1)


CLASSES, BATCH, SIZE = 20, 3, 4
LOSSES = [nn_ops.sampled_softmax_loss, nn_ops.nce_loss]


@pytest.fixture
def problem():
    random = np.random.default_rng(0)
    weights, biases, inputs = (
        tf.constant(random.normal(size=shape), tf.float32) for shape in ([CLASSES, SIZE], [CLASSES], [BATCH, SIZE])
    )
    labels = tf.constant(random.integers(0, CLASSES, [BATCH, 2]))
    sample = tf.random.log_uniform_candidate_sampler(labels, 2, 8, True, CLASSES, seed=1)
    return weights, biases, labels, inputs, sample


def test_losses_and_gradients_for_a_given_sample_are_those_of_tensorflow(problem):
    weights, biases, labels, inputs, sample = problem
    options = {"num_sampled": 8, "num_classes": CLASSES, "num_true": 2, "sampled_values": sample}

    def run(functions):
        results = []
        for function in functions:
            with tf.GradientTape() as tape:
                tape.watch([weights, biases, inputs])
                loss = function(weights, biases, labels, inputs, **options)
                total = tf.reduce_sum(tf.sin(loss))
            results += [loss, *map(tf.convert_to_tensor, tape.gradient(total, [weights, biases, inputs]))]
        return results

    expected = run([tf.nn.sampled_softmax_loss, tf.nn.nce_loss])
    for actual in (run(LOSSES), tf.function(lambda: run(LOSSES), jit_compile=True)()):
        for result, reference in zip(actual, expected, strict=True):
            np.testing.assert_allclose(result, reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_graphs_of_tensorflow_1_have_the_same_loss(problem, loss):
    weights, biases, labels, inputs, sample = tf.nest.map_structure(np.asarray, problem)
    same = [{"sampled_values": sample}, *([{"seed": 3}] if loss is nn_ops.sampled_softmax_loss else [])]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        *losses, drawn = session.run(
            [loss(weights, biases, labels, inputs, 8, CLASSES, 2, **options) for options in (*same, {})]
        )
    for actual, options in zip(losses, same, strict=True):
        np.testing.assert_allclose(actual, loss(*problem[:4], 8, CLASSES, 2, **options), rtol=1e-5)
    assert np.isfinite(drawn).all()


def test_sampled_softmax_over_all_classes_is_the_softmax(problem):
    weights, biases, labels, inputs, _ = problem
    # If the sample has all classes but the true one, each expected once, the loss equals that of all classes.
    labels = labels[:, :1]
    ones = tf.ones([CLASSES]), tf.ones([BATCH, 1])
    sample = (tf.range(CLASSES, dtype=tf.int64), ones[1], ones[0])
    loss = nn_ops.sampled_softmax_loss(weights, biases, labels, inputs, CLASSES, CLASSES, sampled_values=sample)
    logits = tf.matmul(inputs, weights, transpose_b=True) + biases
    np.testing.assert_allclose(loss, tf.nn.sparse_softmax_cross_entropy_with_logits(labels[:, 0], logits), rtol=1e-4)


def test_sample_is_drawn_in_the_program(problem):
    arguments = *problem[:4], 8, CLASSES, 2
    program = tf.function(lambda: nn_ops.sampled_softmax_loss(*arguments), jit_compile=True)
    for loss, other_loss in ((program(), program()), (nn_ops.nce_loss(*arguments), nn_ops.nce_loss(*arguments))):
        assert loss.shape == (BATCH,)
        assert np.isfinite(loss).all()
        assert not np.array_equal(loss, other_loss)
    first, same_seed, other_seed = (nn_ops.sampled_softmax_loss(*arguments, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(first, same_seed)
    assert not np.array_equal(first, other_seed)


def test_frequent_classes_are_drawn_as_often_as_tensorflow_says():
    from tensorflow_ipu.ops.nn_ops import _log_uniform

    labels = tf.constant([[0]], tf.int64)

    @tf.function(jit_compile=True)
    def draw():
        signature = (tf.int64, tf.float32, tf.float32)
        return tf.map_fn(lambda seed: tuple(_log_uniform(labels, 5, CLASSES, seed)), tf.range(300), signature)

    drawn, true_expected, _ = draw()
    assert all(len(set(classes)) == 5 for classes in drawn.numpy())
    share = np.bincount(drawn.numpy().ravel(), minlength=CLASSES) / 300
    # The average of the expected counts is the share of draws.
    assert share[0] == pytest.approx(np.mean(true_expected), abs=0.05)
    assert share[0] > 4 * share[-1]


def test_sizes_of_samples_that_make_no_sense_are_refused(problem, refused):
    for name, value in (("num_sampled", 0), ("num_sampled", 21), ("num_true", 0)):
        sizes = {"num_sampled": 4, "num_classes": CLASSES, name: value}
        refused(ValueError, f"`{name}=", nn_ops.nce_loss, *problem[:4], **sizes)
