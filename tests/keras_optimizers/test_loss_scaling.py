"""Fixed and automatic loss scaling: effects of the scale, its settings, and programs on replicas."""

import functools
import inspect
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.keras.layers import CaptureUpstreamGradients
from tensorflow_ipu.keras.optimizers import (
    ALSDefaults,
    ALSGradientAccumulationOptimizer,
    ALSOptimizer,
    ALSOptimizerAdam,
    ALSOptimizerRMSProp,
    ALSOptimizerSGD,
    CrossReplicaOptimizer,
    GradientAccumulationOptimizer,
    LossScaleOptimizer,
)

SGD = keras.optimizers.SGD
ALS = [ALSOptimizer, ALSOptimizerSGD, ALSOptimizerAdam, ALSOptimizerRMSProp]


def applied(optimizer, *steps):
    """Applies gradients of a scaled loss step by step; returns the weight and the scale after each step."""
    weight = keras.Variable(np.zeros(np.shape(steps[0]), np.float32))
    if optimizer.built:
        [weight] = optimizer._trainable_variables
    history = []
    for gradient in steps:
        optimizer.apply_gradients([(tf.constant(gradient, tf.float32), weight)])
        history.append((weight.numpy().tolist(), float(optimizer.loss_scaling_factor.numpy())))
    return history


def vanishing(optimizer, dtype, scaled=lambda loss: loss):
    """Trains a weight of a float16 model for two steps; its gradient, 2**-28, underflows in float16."""
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
    history = []
    for _ in range(10):
        [(_, scale)] = applied(optimizer, [1.0])
        history.append((scale, int(optimizer.update_counter)))
    assert history == [(2, 1), (2, 2), (4, 0), (4, 1), (4, 2), (8, 0), (8, 1), (8, 2), (8, 0), (8, 1)]
    assert float(optimizer.previous_loss_scaling_factor) == 4


LARGE, SHARES = [1.0, 1.0, 1.0, 1e4], [[1e4], [1.0], [1.0]]


@pytest.mark.parametrize(
    ("first", "settings", "steps", "scales"),
    [
        (2, {"increase_factor": 4}, [[1e4], [1.0], [1e4]], [2, 8, 2]),  # A scale that would fall below one stays.
        (4, {"histogram_bin_edge": 100}, [[1.0, 101.0], [1.0, -101.0], [1.0, 101.0], [1.0, 100.0]], [2, 1, 1, 2]),
        (2, {"ratio_threshold": 0.3}, [LARGE], [4]),
        (2, {"ratio_threshold": 0.2}, [LARGE], [1]),
        (4, {"ratio_threshold": 0.2}, SHARES, [2, 4, 8]),
        (4, {"ratio_threshold": 0.2, "lpf_alpha": 0.5}, SHARES, [2, 1, 2]),  # The shares are 1/2, 1/4, 1/8.
    ],
)
def test_the_share_of_large_gradients_decides_on_the_scale(first, settings, steps, scales):
    optimizer = ALSOptimizer(SGD(0.0), first, update_frequency=1, **settings)
    assert [scale for _, scale in applied(optimizer, *steps)] == scales


@pytest.mark.parametrize(("accumulated", "scale"), [(True, 1), (False, 4)])
def test_the_histogram_counts_all_updates_or_the_latest(accumulated, scale):
    optimizer = ALSOptimizer(SGD(0.0), 2, update_frequency=2, accumulate_statistics_over_update_period=accumulated)
    applied(optimizer, [1e4], [1.0])
    np.testing.assert_array_equal(optimizer.histogram.numpy(), [1, 1] if accumulated else [0, 0])
    assert applied(optimizer, [1.0])[-1][1] == scale


def test_the_histogram_counts_half_precision_alone_where_there_is_any_and_is_cleared_with_each_change():
    optimizer = ALSOptimizer(SGD(0.0), update_frequency=2)
    np.testing.assert_array_equal(optimizer.normalized_histogram, [0, 0])
    applied(optimizer, [1e4, 1.0], [1.0, 1.0])
    np.testing.assert_array_equal(optimizer.normalized_histogram, [0.75, 0.25])
    applied(optimizer, [1e4, 1.0])
    np.testing.assert_array_equal(optimizer.histogram.numpy(), [0, 0])
    weights = [keras.Variable(0.0), keras.Variable(0.0, dtype="float16")]
    mixed = ALSOptimizer(SGD(0.0))
    mixed.apply_gradients(zip([tf.constant(1e4), tf.constant(1.0, tf.float16)], weights, strict=True))
    np.testing.assert_array_equal(mixed.histogram.numpy(), [1, 0])


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
        with pytest.raises(RuntimeError, match=r"`tf.function`, or compute .* `get_scaled_loss\(loss\)` by"):
            optimizer.get_gradients(first.value**2, [first])


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
    derived = ("decrease_factor", "histogram", "loss_scaling_factor", "normalized_histogram", "update_counter")
    for name in (*derived, "previous_loss_scaling_factor"):
        for owner in (als, optimizer):
            with pytest.raises(ValueError, match=f"`{name}` is a read-only property"):
                setattr(owner, name, 1)


@pytest.mark.parametrize(("name", "value"), [("lpf_alpha", 0.5), ("captured_grads_only", True)])
def test_another_way_to_count_begins_anew(name, value):
    optimizer = ALSOptimizer(SGD(0.0), 2, update_frequency=2)
    applied(optimizer, [1.0])
    setattr(optimizer, name, getattr(optimizer, name))
    assert optimizer.update_counter.numpy() == 1
    setattr(optimizer, name, value)
    assert optimizer.update_counter.numpy() == 0
    np.testing.assert_array_equal(optimizer.histogram.numpy(), [0, 0])
    optimizer.captured_grads_only = False
    for _ in range(2):
        assert [scale for _, scale in applied(optimizer, [1.0], [1.0], [1.0])] == [2, 2, 4]
        optimizer.reset()


def test_an_update_with_infinite_gradients_is_skipped_and_lowers_the_scale():
    optimizer = ALSOptimizer(SGD(1.0), 4, update_frequency=1)
    history = applied(optimizer, [4.0, 8.0], [np.inf, 4.0], [np.nan, 4.0], [4.0, 8.0])
    # In the last step the scale is 2, because it increased to 8 and decreased twice.
    assert history == [([-1, -2], 8), ([-1, -2], 4), ([-1, -2], 2), ([-3, -6], 4)]
    assert int(optimizer.iterations) == 2


def test_captured_gradients_count_too_and_must_be_there_where_they_count_alone():
    weight = keras.Variable(0.0)
    for alone, histogram in ((False, [3, 1]), (True, [2, 1])):
        optimizer = ALSOptimizer(SGD(0.0), captured_grads_only=alone)
        captured = {"activations": [tf.constant([1.0, 1e4, 2.0])], "none": None}
        optimizer.apply_gradients([(tf.constant(1.0), weight)], captured)
        np.testing.assert_array_equal(optimizer.histogram.numpy(), histogram)
    with pytest.raises(ValueError, match="`captured_grads_only` is set, but `captured_grads` has no gradient"):
        ALSOptimizer(SGD(), captured_grads_only=True).apply_gradients([(tf.constant(1.0), keras.Variable(0.0))])


def test_sparse_gradients_are_unscaled_and_counted_and_the_global_step_counts_calls():
    table, step = keras.Variable(np.zeros((3, 2), np.float32)), tf.Variable(0)
    optimizer = ALSOptimizer(SGD(1.0), 2)
    slices = tf.IndexedSlices(tf.constant([[2.0, 4.0], [2e4, 0.0]]), tf.constant([1, 1]), tf.constant([3, 2]))
    optimizer.apply_gradients([(slices, table)], global_step=step)
    np.testing.assert_array_equal(table.numpy(), [[0, 0], [-1e4 - 1, -2], [0, 0]])
    np.testing.assert_array_equal(optimizer.histogram.numpy(), [3, 1])
    assert step.numpy() == 1


OWN = {
    ALSOptimizerSGD: (SGD, {"learning_rate": 0.1, "momentum": 0.9}),
    ALSOptimizerAdam: (keras.optimizers.Adam, {"learning_rate": 0.1}),
    ALSOptimizerRMSProp: (keras.optimizers.RMSprop, {"learning_rate": 0.01, "momentum": 0.9, "centered": True}),
}


@pytest.mark.parametrize("kind", OWN)
def test_the_optimizers_with_scaling_of_their_own_train_as_the_plain_ones_with_float32_state(kind):
    plain_type, options = OWN[kind]
    scaling, plain = kind(**options, initial_loss_scaling_factor=2, update_frequency=2), plain_type(**options)
    first, second = keras.Variable([1.0, -2.0]), keras.Variable([1.0, -2.0])
    for step in range(7):  # The scale changes twice.
        gradient = tf.constant([np.sin(step), 0.5], tf.float32)
        scaling.apply_gradients([(scaling.get_scaled_loss(gradient), first)])
        plain.apply_gradients([(gradient, second)])
    assert scaling.loss_scaling_factor.numpy() == 8
    np.testing.assert_allclose(first.numpy(), second.numpy(), rtol=1e-5)
    optimizer, weight = kind(**options), keras.Variable(1.0, dtype="float16")
    optimizer.apply_gradients([(tf.constant(1.0, tf.float16), weight)])
    slots = [variable for variable in optimizer.inner_optimizer.variables if variable.name != "iteration"]
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


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("update_frequency", 0, "`update_frequency` must be a whole number of 1 or more, but is 0"),
        ("increase_factor", 3, "`increase_factor` must be a power of two, but is 3"),
        ("initial_loss_scaling_factor", 3, "`initial_loss_scaling_factor` must be a power of two, but is 3"),
        ("initial_loss_scaling_factor", 65536, "less than `max_loss_scaling_factor`, but they are 65536 and 32768"),
        ("initial_loss_scaling_factor", 16384, "x `increase_factor` must be less than"),
        ("max_loss_scaling_factor", 1000, "`max_loss_scaling_factor` must be a power of two, but is 1000"),
        ("max_loss_scaling_factor", 1, "must be less than `max_loss_scaling_factor`"),
        ("max_loss_scaling_factor", 2, "x `increase_factor` must be less than"),
        ("ratio_threshold", 0.0, "`ratio_threshold` must be greater than zero and less than one, but is 0.0"),
        ("ratio_threshold", 1.0, "`ratio_threshold` must be greater than zero and less than one, but is 1.0"),
        ("lpf_alpha", 1, "`lpf_alpha` must be"),
        ("histogram_bin_edge", 0, "`histogram_bin_edge` must be"),
        ("increase_factor", 0.5, "`increase_factor` must be"),
        ("update_frequency", True, "`update_frequency` must be"),
        ("captured_grads_only", 1, "`captured_grads_only` must be"),
        ("ratio_threshold", "small", "`ratio_threshold` must be"),
    ],
)
def test_a_wrong_setting_is_refused_by_constructor_and_setter(name, value, message, refused):
    kind = TypeError if isinstance(value, bool | str) or name == "captured_grads_only" else ValueError
    refused(kind, message, ALSOptimizer, SGD(), **{name: value})
    optimizer = ALSOptimizer(SGD())
    old_value = getattr(optimizer, name)
    refused(kind, message, setattr, optimizer, name, value)
    assert getattr(optimizer, name) == old_value


def test_settings_can_be_changed():
    optimizer = ALSOptimizer(SGD(0.0))
    settings = {"update_frequency": 1, "increase_factor": 4, "max_loss_scaling_factor": 64, "ratio_threshold": 0.5}
    for name, value in {**settings, "initial_loss_scaling_factor": 2}.items():
        setattr(optimizer, name, value)
    optimizer.reset()
    assert [scale for _, scale in applied(optimizer, [1.0], [1.0])] == [8, 32]


def test_a_loss_is_not_scaled_twice(refused):
    for inner in (ALSOptimizerSGD(), keras.optimizers.LossScaleOptimizer(SGD()), SGD(loss_scale_factor=2.0)):
        refused(ValueError, "which scales the loss itself", ALSOptimizer, inner)


def test_an_optimizer_is_recreated_from_its_configuration_and_the_scale_from_a_checkpoint(recreated, tmp_path):
    recreated(ALSOptimizer(SGD(0.5), 4, lpf_alpha=0.5))
    recreated(ALSGradientAccumulationOptimizer(ALSOptimizer(SGD(0.5), 4), 3))
    recreated(*[kind(0.5, initial_loss_scaling_factor=4) for kind in ALS[1:]])
    recreated(ALSOptimizerAdam(keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.5)))
    recreated(LossScaleOptimizer(SGD(0.5), 4.0))
    optimizer = ALSOptimizerAdam(0.5, update_frequency=1)
    applied(optimizer, [1.0], [1.0])
    path = tf.train.Checkpoint(optimizer=optimizer).save(str(tmp_path / "checkpoint"))
    restored = ALSOptimizerAdam(0.5, update_frequency=1)
    tf.train.Checkpoint(optimizer=restored).restore(path).expect_partial()
    assert restored.loss_scaling_factor.numpy() == 4


def test_replicas_train_as_without_it(trained_on):
    scaling = functools.cache(lambda: ALSOptimizer(keras.optimizers.Adam(0.1), 4, update_frequency=1))
    for actual, expected in zip(*trained_on(2, scaling, lambda: keras.optimizers.Adam(0.1)), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    assert scaling().loss_scaling_factor.numpy() == 4 * 2**4


SCALING = {
    "als": lambda: ALSOptimizer(SGD(1.0), 2, update_frequency=1),
    "keras": lambda: LossScaleOptimizer(SGD(1.0), initial_scale=4.0),
}
ACCUMULATING = {"als": ALSGradientAccumulationOptimizer, "keras": GradientAccumulationOptimizer}


@pytest.mark.parametrize(
    ("count", "kind", "dtype", "gradients", "weights", "scales"),
    [
        # Replica 0 has the first of each pair; a single replica accumulates two.
        (2, "als", "float32", [1, 1, np.inf, 1, 1, 1], [[-2] * 2, [-2] * 2, [-4] * 2], [[4] * 2, [2] * 2, [4] * 2]),
        (2, "keras", "float32", [1, 1, np.inf, 1, 2, 2], [[-2] * 2, [-2] * 2, [-6] * 2], [[4] * 2, [2] * 2, [2] * 2]),
        (1, "als", "float32", [1, 2, np.inf, 1, 3, 4], [0, -3, -3, -3, -3, -10], [2, 4, 4, 2, 2, 4]),
        (1, "keras", "float16", [1, 2, 1e6, 1, 3, 4], [0, -3, -3, -3, -3, -10], [4, 4, 4, 2, 2, 2]),
    ],
)
def test_an_infinite_gradient_is_skipped_on_all_replicas_and_in_accumulation(
    replicas, count, kind, dtype, gradients, weights, scales
):
    strategy = replicas(count)
    with strategy.scope():
        weight = keras.Variable(0.0, dtype=dtype)
        scaling = SCALING[kind]()
        optimizer = scaling if count == 2 else ACCUMULATING[kind](scaling, 2)
        optimizer.build([weight])
        scale = scaling.dynamic_scale if kind == "keras" else scaling.loss_scaling_factor
        results = ipu.IPUOutfeedQueue()

        @tf.function(jit_compile=True)
        def program(gradients):
            for _ in tf.range(6 // count):
                gradient = tf.cast(optimizer.scale_loss(next(gradients)), weight.dtype)
                optimizer.apply_gradients([(gradient, weight)])
                results.enqueue((weight.value, scale.value))

        strategy.run(program, args=(iter(tf.data.Dataset.from_tensor_slices(np.array(gradients, np.float32))),))
    for actual, expected in zip(results.dequeue(), (weights, scales), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_accumulation_with_scaling_counts_captured_gradients_and_wants_an_optimizer_that_scales(strategy):
    with strategy.scope():
        weight = keras.Variable(0.0)
        als = ALSOptimizer(SGD(1.0), 2, captured_grads_only=True)
        optimizer = ALSGradientAccumulationOptimizer(als, 2)

    @tf.function(jit_compile=True)
    def program():
        for _ in tf.range(2):
            optimizer.apply_gradients([(tf.constant(1.0), weight)], captured_grads=[tf.constant([1.0, 1e4])])

    strategy.run(program)
    np.testing.assert_array_equal(als.histogram.numpy(), [2, 2])  # Of each mini-batch.
    with pytest.raises(ValueError, match="`als_optimizer` must be an `ALSOptimizer`"):
        ALSGradientAccumulationOptimizer(SGD(), 2)
    with pytest.raises(ValueError, match="`experimental_aggregate_gradients` must be True"):
        optimizer.apply_gradients([(tf.constant(1.0), weight)], experimental_aggregate_gradients=False)


class Recording(SGD):
    """A user-defined optimizer that records the shapes of captured gradients."""

    supports_captured_grads = True
    shapes = ()

    def apply_gradients(self, grads_and_vars, captured_grads=None):
        self.shapes = [*self.shapes, tf.nest.map_structure(lambda gradient: gradient.shape, captured_grads)]
        return super().apply_gradients(grads_and_vars)


def test_fit_hands_captured_gradients_to_the_optimizer(strategy):
    """Fits a linear model to 0 with x = 1, so the captured gradients are 2 w / 2 in each of two rows."""

    def fitted(make, steps_per_update=1):
        with strategy.scope():
            dense = keras.layers.Dense(1, use_bias=False, kernel_initializer=keras.initializers.Constant(3.0))
            model: Any = keras.Sequential([keras.Input([1]), CaptureUpstreamGradients(dense, tag="dense")])
            model.compile(make(), "mse", steps_per_execution=4)
        if steps_per_update > 1:
            model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=steps_per_update)
        model.fit(np.ones([8, 1], np.float32), np.zeros([8, 1], np.float32), batch_size=2, verbose=0)
        return model.optimizer

    # An update is one step or two steps. With two, the captured gradients of each step are counted.
    for steps, alone, histogram in ((1, False, [12, 0]), (2, True, [8, 0])):
        optimizer = fitted(lambda alone=alone: ALSOptimizer(SGD(0.0), 2, captured_grads_only=alone), steps)
        np.testing.assert_array_equal(optimizer.histogram.numpy(), histogram)
        assert optimizer.iterations.numpy() == 4 // steps
    assert fitted(lambda: Recording(0.1)).shapes == [{"dense": [(2, 1)]}]  # Traced once.
    with pytest.raises(ValueError, match="needs the captured gradients of each step"):
        fitted(lambda: Recording(0.1), 2)


def test_replicas_that_accumulate_scale_and_take_the_mean_stay_equal(replicas):
    strategy = replicas(4)
    with strategy.scope():
        weight = keras.Variable(np.ones((2, 2), np.float32))
        als = ALSOptimizer(CrossReplicaOptimizer(keras.optimizers.Adam(0.01)), 2, update_frequency=1)
        optimizer = ALSGradientAccumulationOptimizer(als, 2)
        results = ipu.IPUOutfeedQueue()

        @tf.function(jit_compile=True)
        def program(numbers):
            for _ in tf.range(12):
                x = next(numbers)
                with tf.GradientTape() as tape:
                    loss = optimizer.get_scaled_loss(tf.reduce_sum(tf.tanh(weight.value) * x))
                optimizer.apply_gradients([(tape.gradient(loss, weight.value), weight)])
                results.enqueue((weight.value, als.loss_scaling_factor.value))

        numbers = tf.data.Dataset.range(48).map(lambda i: tf.cast(i % 7, tf.float32))
        strategy.run(program, args=(iter(numbers),))
    for values in results.dequeue():
        np.testing.assert_array_equal(values, np.repeat(values[:, :1], 4, axis=1))
    assert als.loss_scaling_factor.numpy() == 2 * 2**6
    assert int(optimizer.iterations) == 6


@pytest.mark.parametrize(
    ("behaviour", "first_step"),
    [
        ({}, 0.0),  # In XLA's arithmetic, float16 becomes infinite, so the update is skipped.
        ({"nanoo": True}, 0.0),  # On real IPUs with this option, it becomes NaN.
        (
            {"esr": ipu.config.StochasticRoundingBehaviour.ON},
            -65504 / 128,
        ),  # Without `nanoo`, real IPUs saturate, and the update is made.
    ],
)
def test_scaling_sees_the_overflows_that_the_machine_would(configure, strategy, behaviour, first_step):
    configure(1, **{f"floating_point_behaviour__{name}": value for name, value in behaviour.items()})
    with strategy.scope():
        weight = keras.Variable(0.0)
        optimizer = ALSOptimizer(SGD(1.0), 128, update_frequency=1)
        results = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program():
        for _ in tf.range(3):
            with tf.GradientTape() as tape:
                half = tf.cast(weight.value, tf.float16)
                loss = optimizer.get_scaled_loss(tf.reduce_sum(half * tf.constant([600, 400], tf.float16)))
            gradient = tape.gradient(loss, half)
            optimizer.apply_gradients([(gradient, weight)])
            results.enqueue((weight.value, optimizer.loss_scaling_factor.value))

    strategy.run(program)
    weights, scales = results.dequeue()
    # 128 times 1000 is beyond float16, and counts as above the edge of the histogram, as 64 and 32 times 1000 do.
    np.testing.assert_array_equal(scales, [64, 32, 16])
    np.testing.assert_array_equal(weights, [first_step, first_step - 1000, first_step - 2000])
