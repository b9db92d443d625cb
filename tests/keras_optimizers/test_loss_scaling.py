"""Fixed and automatic loss scaling of float16 models: what the scale does, and how it is set."""

from __future__ import annotations

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu.keras.optimizers import (
    ALSDefaults,
    ALSGradientAccumulationOptimizer,
    ALSOptimizer,
    ALSOptimizerAdam,
    ALSOptimizerRMSProp,
    ALSOptimizerSGD,
    LossScaleOptimizer,
)

SGD = keras.optimizers.SGD
ALS = [ALSOptimizer, ALSOptimizerSGD, ALSOptimizerAdam, ALSOptimizerRMSProp]


def applied(optimizer, *steps):
    """Applies gradients of a scaled loss, one step after the other: the weight and the scale behind each."""
    weight = keras.Variable(np.zeros(np.shape(steps[0]), np.float32))
    if optimizer.built:
        [weight] = optimizer._trainable_variables
    seen = []
    for gradient in steps:
        optimizer.apply_gradients([(tf.constant(gradient, tf.float32), weight)])
        seen.append((weight.numpy().tolist(), float(optimizer.loss_scaling_factor.numpy())))
    return seen


def vanishing(optimizer, dtype, scaled=lambda loss: loss):
    """Trains a weight of a float16 model whose gradient, 2**-28, is below what float16 has: two steps."""
    weight = keras.Variable(0.0, dtype=dtype)
    factor = tf.constant(2.0**-14, tf.float16)
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = scaled(tf.cast(weight.value, tf.float16) * factor * factor)
        optimizer.apply_gradients([(tape.gradient(loss, weight.value), weight)])
    return float(weight.numpy())


@pytest.mark.parametrize(
    ("optimizer", "dtype"),
    [
        (lambda rate, scale: ALSOptimizer(SGD(rate), scale), "float32"),
        (lambda rate, scale: ALSOptimizerSGD(rate, initial_loss_scaling_factor=scale), "float16"),
        (lambda rate, scale: SGD(rate, loss_scale_factor=scale), "float32"),
        (lambda rate, scale: keras.optimizers.LossScaleOptimizer(SGD(rate), scale), "float32"),
    ],
)
def test_a_gradient_that_float16_would_lose_counts(optimizer, dtype):
    rate, scale = 2.0**14, 2.0**12
    assert vanishing(SGD(rate), dtype) == 0
    scaling = optimizer(rate, scale)
    assert vanishing(scaling, dtype, scaling.scale_loss) == -2 * 2.0**-28 * rate


def test_the_scale_grows_in_the_update_after_so_many_and_stays_below_its_maximum():
    optimizer = ALSOptimizer(SGD(1.0), 2, update_frequency=2, max_loss_scaling_factor=16)
    seen = []
    for _ in range(10):
        [(_, scale)] = applied(optimizer, [1.0])
        seen.append((scale, int(optimizer.update_counter)))
    assert seen == [(2, 1), (2, 2), (4, 0), (4, 1), (4, 2), (8, 0), (8, 1), (8, 2), (8, 0), (8, 1)]
    assert float(optimizer.previous_loss_scaling_factor) == 4


def test_a_frequency_of_one_changes_the_scale_in_each_update():
    optimizer = ALSOptimizer(SGD(1.0), update_frequency=1, max_loss_scaling_factor=16)
    assert [scale for _, scale in applied(optimizer, *[[1.0]] * 5)] == [2, 4, 8, 8, 8]


def test_a_scale_that_would_fall_below_one_stays():
    optimizer = ALSOptimizer(SGD(0.0), 2, update_frequency=1, increase_factor=4)
    assert [scale for _, scale in applied(optimizer, [1e4], [1.0], [1e4])] == [2, 8, 2]


def test_the_scale_falls_when_too_many_gradients_are_large_and_not_below_one():
    optimizer = ALSOptimizer(SGD(0.0), 4, update_frequency=1, histogram_bin_edge=100)
    scales = [scale for _, scale in applied(optimizer, [1.0, 101.0], [1.0, -101.0], [1.0, 101.0], [1.0, 100.0])]
    assert scales == [2, 1, 1, 2]


@pytest.mark.parametrize(("threshold", "scale"), [(0.3, 4), (0.2, 1)])
def test_the_threshold_is_the_share_of_large_gradients(threshold, scale):
    optimizer = ALSOptimizer(SGD(0.0), 2, update_frequency=1, ratio_threshold=threshold)
    [(_, after)] = applied(optimizer, [1.0, 1.0, 1.0, 1e4])
    assert after == scale


@pytest.mark.parametrize(("accumulated", "scale"), [(True, 1), (False, 4)])
def test_the_histogram_counts_all_updates_or_the_latest(accumulated, scale):
    optimizer = ALSOptimizer(SGD(0.0), 2, update_frequency=2, accumulate_statistics_over_update_period=accumulated)
    applied(optimizer, [1e4], [1.0])
    np.testing.assert_array_equal(optimizer.histogram.numpy(), [1, 1] if accumulated else [0, 0])
    assert applied(optimizer, [1.0])[-1][1] == scale


def test_the_histogram_is_cleared_with_each_change():
    optimizer = ALSOptimizer(SGD(0.0), update_frequency=2)
    np.testing.assert_array_equal(optimizer.normalized_histogram, [0, 0])
    applied(optimizer, [1e4, 1.0], [1.0, 1.0])
    np.testing.assert_array_equal(optimizer.histogram.numpy(), [3, 1])
    np.testing.assert_array_equal(optimizer.normalized_histogram, [0.75, 0.25])
    applied(optimizer, [1e4, 1.0])
    np.testing.assert_array_equal(optimizer.histogram.numpy(), [0, 0])


def test_gradients_of_half_precision_count_alone_where_there_are_any():
    weights = [keras.Variable(0.0), keras.Variable(0.0, dtype="float16")]
    optimizer = ALSOptimizer(SGD(0.0))
    optimizer.apply_gradients(zip([tf.constant(1e4), tf.constant(1.0, tf.float16)], weights, strict=True))
    np.testing.assert_array_equal(optimizer.histogram.numpy(), [1, 0])


def test_gradients_of_the_scaled_loss_are_given_in_a_graph():
    first, second = keras.Variable([1.0, 2.0]), keras.Variable(3.0)
    als = ALSOptimizer(SGD(), 4)
    for optimizer in (als, ALSGradientAccumulationOptimizer(als, 2)):

        @tf.function
        def gradients(optimizer=optimizer):
            return optimizer.get_gradients(tf.reduce_sum(first.value**2), [first])

        np.testing.assert_array_equal(gradients()[0], [8, 16])
        with pytest.raises(ValueError, match="`loss` does not depend on `variable"):
            tf.function(lambda optimizer=optimizer: optimizer.get_gradients(first.value**2, [first, second]))()
        with pytest.raises(RuntimeError, match=r"`tf.function`, or take .* `get_scaled_loss\(loss\)` by"):
            optimizer.get_gradients(first.value**2, [first])


DERIVED = (
    "decrease_factor",
    "histogram",
    "loss_scaling_factor",
    "normalized_histogram",
    "previous_loss_scaling_factor",
    "update_counter",
)


def test_accumulation_has_all_settings_and_statistics_of_the_optimizer_that_scales():
    als = ALSOptimizer(SGD(), 4, lpf_alpha=0.5, histogram_bin_edge=64)
    optimizer = ALSGradientAccumulationOptimizer(als, 2)
    settings = [name for name in als.get_config() if name not in ("opt", "name")]
    assert len(settings) == 9
    for name in settings:
        assert getattr(optimizer, name) == getattr(als, name) == als.get_config()[name]
    assert (optimizer.als_optimizer, optimizer.supports_captured_grads, optimizer.decrease_factor) == (als, True, 0.5)
    assert optimizer.histogram is als.histogram
    optimizer.update_frequency = 3
    assert als.update_frequency == 3


@pytest.mark.parametrize("name", DERIVED)
def test_what_follows_from_the_training_cannot_be_set(name):
    als = ALSOptimizer(SGD())
    for optimizer in (als, ALSGradientAccumulationOptimizer(als, 2)):
        with pytest.raises(ValueError, match=f"`{name}` is a read-only property"):
            setattr(optimizer, name, 1)


@pytest.mark.parametrize(("name", "value"), [("lpf_alpha", 0.5), ("captured_grads_only", True)])
def test_another_way_to_count_begins_anew(name, value):
    optimizer = ALSOptimizer(SGD(0.0), 2)
    applied(optimizer, [1.0])
    setattr(optimizer, name, getattr(optimizer, name))
    assert optimizer.update_counter.numpy() == 1
    setattr(optimizer, name, value)
    assert optimizer.update_counter.numpy() == 0
    np.testing.assert_array_equal(optimizer.histogram.numpy(), [0, 0])


def test_a_low_pass_filter_remembers_large_gradients():
    scales = {}
    for alpha in (0, 0.5):
        optimizer = ALSOptimizer(SGD(0.0), 4, update_frequency=1, ratio_threshold=0.2, lpf_alpha=alpha)
        scales[alpha] = [scale for _, scale in applied(optimizer, [1e4], [1.0], [1.0])]
    assert scales == {0: [2, 4, 8], 0.5: [2, 1, 2]}  # The shares are 1/2, 1/4, 1/8.


def test_an_update_with_infinite_gradients_is_skipped_and_lowers_the_scale():
    optimizer = ALSOptimizer(SGD(1.0), 4, update_frequency=1)
    seen = applied(optimizer, [4.0, 8.0], [np.inf, 4.0], [np.nan, 4.0], [4.0, 8.0])
    # By then, the scale is 2, since it grew to 8 and fell twice.
    assert seen == [([-1, -2], 8), ([-1, -2], 4), ([-1, -2], 2), ([-3, -6], 4)]
    assert int(optimizer.iterations) == 2


def test_captured_gradients_count_too():
    weight = keras.Variable(0.0)
    for alone, histogram in ((False, [3, 1]), (True, [2, 1])):
        optimizer = ALSOptimizer(SGD(0.0), captured_grads_only=alone)
        captured = {"activations": [tf.constant([1.0, 1e4, 2.0])], "none": None}
        optimizer.apply_gradients([(tf.constant(1.0), weight)], captured)
        np.testing.assert_array_equal(optimizer.histogram.numpy(), histogram)


def test_captured_gradients_alone_must_be_there():
    optimizer = ALSOptimizer(SGD(), captured_grads_only=True)
    with pytest.raises(ValueError, match="`captured_grads_only` is set, but `captured_grads` has no gradient"):
        optimizer.apply_gradients([(tf.constant(1.0), keras.Variable(0.0))])


def test_sparse_gradients_are_unscaled_and_counted():
    table = keras.Variable(np.zeros((3, 2), np.float32))
    optimizer = ALSOptimizer(SGD(1.0), 2)
    slices = tf.IndexedSlices(tf.constant([[2.0, 4.0], [2e4, 0.0]]), tf.constant([1, 1]), tf.constant([3, 2]))
    optimizer.apply_gradients([(slices, table)])
    np.testing.assert_array_equal(table.numpy(), [[0, 0], [-1e4 - 1, -2], [0, 0]])
    np.testing.assert_array_equal(optimizer.histogram.numpy(), [3, 1])


def test_the_global_step_counts_calls():
    step = tf.Variable(0)
    ALSOptimizer(SGD()).apply_gradients([(tf.constant(1.0), keras.Variable(0.0))], global_step=step)
    assert step.numpy() == 1


def test_reset_begins_anew():
    optimizer = ALSOptimizer(SGD(0.0), 2, update_frequency=2)
    applied(optimizer, [1.0], [1.0], [1.0])
    assert optimizer.loss_scaling_factor.numpy() == 4
    optimizer.reset()
    assert [scale for _, scale in applied(optimizer, [1.0], [1.0], [1.0])] == [2, 2, 4]


OWN = {
    "sgd": (lambda: ALSOptimizerSGD(0.1, 0.9, initial_loss_scaling_factor=2), lambda: SGD(0.1, 0.9)),
    "adam": (lambda: ALSOptimizerAdam(0.1, initial_loss_scaling_factor=2), lambda: keras.optimizers.Adam(0.1)),
    "rmsprop": (
        lambda: ALSOptimizerRMSProp(0.01, momentum=0.9, centered=True, initial_loss_scaling_factor=2),
        lambda: keras.optimizers.RMSprop(0.01, momentum=0.9, centered=True),
    ),
}


@pytest.mark.parametrize("kind", OWN)
def test_the_optimizers_with_scaling_of_their_own_train_as_the_plain_ones(kind):
    ours, plain = (make() for make in OWN[kind])
    first, second = keras.Variable([1.0, -2.0]), keras.Variable([1.0, -2.0])
    for step in range(20):  # Over two changes of the scale.
        gradient = tf.constant([np.sin(step), 0.5], tf.float32)
        ours.apply_gradients([(ours.get_scaled_loss(gradient), first)])
        plain.apply_gradients([(gradient, second)])
    assert ours.loss_scaling_factor.numpy() == 8
    np.testing.assert_allclose(first.numpy(), second.numpy(), rtol=1e-5)


@pytest.mark.parametrize("kind", OWN)
def test_the_state_of_optimizers_with_scaling_of_their_own_is_float32(kind):
    optimizer, weight = OWN[kind][0](), keras.Variable(1.0, dtype="float16")
    optimizer.apply_gradients([(tf.constant(1.0, tf.float16), weight)])
    slots = [variable for variable in optimizer.inner_optimizer.variables if variable.name not in ("iteration",)]
    assert {variable.dtype for variable in slots} == {"float32"}


def test_the_defaults_are_those_of_the_original():
    expected = {
        "initial_loss_scaling_factor": 1,
        "update_frequency": 8,
        "increase_factor": 2,
        "max_loss_scaling_factor": 32768,
        "accumulate_statistics_over_update_period": True,
        "ratio_threshold": 1e-05,
        "captured_grads_only": False,
        "lpf_alpha": 0,
        "histogram_bin_edge": 8192,
    }
    assert {name: getattr(ALSDefaults, name) for name in expected} == expected
    for kind in ALS:
        parameters = inspect.signature(kind).parameters
        assert {name: parameters[name].default for name in expected} == expected
        assert parameters["name"].default == kind.__name__
        assert list(parameters)[-len(expected) - 1 :] == [*expected, "name"]


BAD = [
    ("update_frequency", 0, "`update_frequency` must be a whole number of 1 or more, but is 0"),
    ("increase_factor", 3, "`increase_factor` must be a power of two, but is 3"),
    ("initial_loss_scaling_factor", 3, "`initial_loss_scaling_factor` must be a power of two, but is 3"),
    ("initial_loss_scaling_factor", 65536, "must be less than `max_loss_scaling_factor`, but they are 65536 and 32768"),
    ("initial_loss_scaling_factor", 16384, "x `increase_factor` must be less than"),
    ("max_loss_scaling_factor", 1000, "`max_loss_scaling_factor` must be a power of two, but is 1000"),
    ("max_loss_scaling_factor", 1, "must be less than `max_loss_scaling_factor`"),
    ("max_loss_scaling_factor", 2, "x `increase_factor` must be less than"),
    ("ratio_threshold", 0.0, "`ratio_threshold` must be greater than zero and less than one, but is 0.0"),
    ("ratio_threshold", 1.0, "`ratio_threshold` must be greater than zero and less than one, but is 1.0"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD)
def test_a_setting_out_of_range_is_refused_by_constructor_and_setter(name, value, message):
    with pytest.raises(ValueError, match=message):
        ALSOptimizer(SGD(), **{name: value})
    optimizer = ALSOptimizer(SGD())
    before = getattr(optimizer, name)
    with pytest.raises(ValueError, match=message):
        setattr(optimizer, name, value)
    assert getattr(optimizer, name) == before


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("lpf_alpha", 1, ValueError),
        ("histogram_bin_edge", 0, ValueError),
        ("increase_factor", 0.5, ValueError),
        ("update_frequency", True, TypeError),
        ("captured_grads_only", 1, TypeError),
        ("ratio_threshold", "small", TypeError),
    ],
)
def test_a_wrong_setting_is_named(name, value, kind):
    with pytest.raises(kind, match=f"`{name}` must be"):
        ALSOptimizer(SGD(), **{name: value})


def test_settings_can_be_changed():
    optimizer = ALSOptimizer(SGD(0.0))
    optimizer.update_frequency = 1
    optimizer.increase_factor = 4
    optimizer.max_loss_scaling_factor = 64
    optimizer.initial_loss_scaling_factor = 2
    optimizer.ratio_threshold = 0.5
    optimizer.reset()
    assert [scale for _, scale in applied(optimizer, [1.0], [1.0, 1e4][:1])] == [8, 32]


@pytest.mark.parametrize(
    "inner",
    [
        lambda: ALSOptimizerSGD(),
        lambda: keras.optimizers.LossScaleOptimizer(SGD()),
        lambda: SGD(loss_scale_factor=2.0),
    ],
)
def test_a_loss_is_not_scaled_twice(inner):
    with pytest.raises(ValueError, match="which scales the loss itself"):
        ALSOptimizer(inner())


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: ALSOptimizer(SGD(0.5), 4, lpf_alpha=0.5),
        lambda: ALSGradientAccumulationOptimizer(ALSOptimizer(SGD(0.5), 4), 3),
        *[lambda kind=kind: kind(0.5, initial_loss_scaling_factor=4) for kind in ALS[1:]],
        lambda: ALSOptimizerAdam(keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.5)),
        lambda: LossScaleOptimizer(SGD(0.5), 4.0),
    ],
)
def test_an_optimizer_is_made_anew_from_its_configuration(optimizer):
    first = optimizer()
    again = keras.optimizers.deserialize(keras.optimizers.serialize(first))
    assert type(again) is type(first)
    assert keras.optimizers.serialize(again) == keras.optimizers.serialize(first)


def test_the_scale_is_saved_in_checkpoints_and_restored(tmp_path):
    optimizer = ALSOptimizerAdam(0.5, update_frequency=1)
    applied(optimizer, [1.0], [1.0])
    path = tf.train.Checkpoint(optimizer=optimizer).save(str(tmp_path / "checkpoint"))
    other = ALSOptimizerAdam(0.5, update_frequency=1)
    tf.train.Checkpoint(optimizer=other).restore(path).expect_partial()
    assert other.loss_scaling_factor.numpy() == 4
