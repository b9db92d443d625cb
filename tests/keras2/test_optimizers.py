"""Tests optimizers of Keras 2 in programs: both kinds of Keras, optimizers of this package, and wrappers."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import tensorflow_ipu as ipu
from tensorflow_ipu import pipelining
from tensorflow_ipu.keras.layers import CaptureUpstreamGradients
from tensorflow_ipu.keras.optimizers import (
    AdamIpuOptimizer,
    ALSGradientAccumulationOptimizer,
    ALSOptimizer,
    ALSOptimizerAdam,
    ALSOptimizerRMSProp,
    ALSOptimizerSGD,
    CrossReplicaOptimizer,
    GradientAccumulationOptimizer,
    IpuOptimizerBase,
    LAMBIpuOptimizer,
    LossScaleOptimizer,
    MapGradientOptimizer,
    RMSpropIpuOptimizer,
    SGDIpuOptimizer,
)

old, new = keras.optimizers.legacy, keras.optimizers
BATCHES = 8
RANDOM = np.random.default_rng(11)
INPUTS, TARGETS = (RANDOM.normal(size=[BATCHES, 4, size]).astype(np.float32) for size in (3, 1))


@keras.saving.register_keras_serializable("tests")
class OldMomentum(IpuOptimizerBase):
    """An optimizer as written in 2021: slots of another dtype, hyperparameters as variables, one update per variable."""

    def __init__(self, learning_rate=0.01, momentum=0.9, name="OldMomentum", slot_dtype=None, **kwargs):
        super().__init__(name, **kwargs)
        self._set_hyper("learning_rate", kwargs.get("lr", learning_rate))
        self._set_hyper("momentum", momentum)
        self.slot_dtype = slot_dtype

    def get_slot_dtype(self, var, slot_name) -> Any:
        return self.slot_dtype

    def _create_slots(self, var_list):
        for var in var_list:
            self.add_slot(var, "velocity")
            self.add_slot_with_dtype(var, "last", None)

    def _prepare_local(self, var_device, var_dtype, apply_state):
        super()._prepare_local(var_device, var_dtype, apply_state)
        apply_state[var_device, var_dtype]["momentum"] = tf.identity(self._get_hyper("momentum", self.opt_dtypes[0]))

    def _resource_apply_dense(self, grad, var, apply_state=None):
        key = (var.device, var.dtype.base_dtype)
        found = (apply_state or {}).get(key) or self._fallback_apply_state(*key)
        velocity = self.get_slot(var, "velocity")
        moved = found["momentum"] * tf.cast(velocity, tf.float32) - found["lr_t"] * grad
        last = self.get_slot(var, "last").assign(tf.cast(grad, self.get_slot(var, "last").dtype))
        return tf.group(velocity.assign(tf.cast(moved, velocity.dtype)), var.assign_add(moved), last)

    def get_config(self):
        numbers = {name: self._serialize_hyperparameter(name) for name in ("learning_rate", "momentum")}
        return {**super().get_config(), **numbers, "slot_dtype": self.slot_dtype}


def weights_of(dtype="float32"):
    return [tf.Variable(np.ones((3, 1)), dtype=dtype, name="kernel"), tf.Variable([0.0], dtype=dtype, name="bias")]


def loss_of(weights, x, y):
    return tf.reduce_mean((tf.matmul(x, weights[0]) + weights[1] - y) ** 2)


def plainly_trained(optimizer, size, share=1.0):
    weights = weights_of()
    for begin in range(0, BATCHES, size):
        with tf.GradientTape() as tape:
            loss = sum(loss_of(weights, INPUTS[row], TARGETS[row]) for row in range(begin, begin + size)) * share
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
    return [weight.numpy() for weight in weights]


def momentum():
    return old.SGD(0.05, 0.9)


def adam():
    return old.Adam(0.1)


def accumulating(inner, number=2, **options):
    return lambda: GradientAccumulationOptimizer(inner(), number, **options)


def accumulating_scaled():
    scaling = ALSOptimizer(CrossReplicaOptimizer(adam()), 4, update_frequency=1)
    return ALSGradientAccumulationOptimizer(scaling, 2)


# By number of replicas: the optimizer, the plain optimizer, micro-batches per update, the factor of a gradient.
TRAINED = {
    1: [
        (lambda: SGDIpuOptimizer(0.05, 0.9), momentum, 1, 1.0),
        (lambda: SGDIpuOptimizer(0.05, decay=0.1), lambda: old.SGD(0.05, decay=0.1), 1, 1.0),
        (lambda: SGDIpuOptimizer(0.1, 0.9, True, clipnorm=0.1), lambda: old.SGD(0.1, 0.9, True, clipnorm=0.1), 1, 1.0),
        (lambda: AdamIpuOptimizer(0.1), adam, 1, 1.0),
        (lambda: AdamIpuOptimizer(0.1, amsgrad=True), lambda: old.Adam(0.1, amsgrad=True), 1, 1.0),
        (lambda: RMSpropIpuOptimizer(0.1), lambda: old.RMSprop(0.1), 1, 1.0),
        (
            lambda: RMSpropIpuOptimizer(0.01, momentum=0.9, centered=True),
            lambda: old.RMSprop(0.01, momentum=0.9, centered=True),
            1,
            1.0,
        ),
        (lambda: OldMomentum(0.05), momentum, 1, 1.0),
        (lambda: LAMBIpuOptimizer(0.1, weight_decay_rate=0.1),) * 2 + (1, 1.0),
        (accumulating(adam, reduction_method="mean"), adam, 2, 0.5),
        (accumulating(lambda: new.SGD(0.05, 0.9), reduction_method="running_mean"), momentum, 2, 0.5),
        (lambda: MapGradientOptimizer(new.SGD(0.05, 0.9), lambda gradient, _: 3 * gradient), momentum, 1, 3.0),
        (lambda: MapGradientOptimizer(LossScaleOptimizer(adam()), lambda gradient, _: gradient), adam, 1, 1.0),
        (lambda: MapGradientOptimizer(LossScaleOptimizer(new.Adam(0.1)), lambda gradient, _: gradient), adam, 1, 1.0),
        (lambda: ALSOptimizerSGD(0.05, 0.9, 4), momentum, 1, 1.0),
        (lambda: ALSOptimizerRMSProp(0.1), lambda: old.RMSprop(0.1), 1, 1.0),
    ],
    2: [
        (momentum, momentum, 2, 1.0),
        (lambda: new.SGD(0.05, 0.9), momentum, 2, 1.0),
        (lambda: OldMomentum(0.05), momentum, 2, 1.0),
        (lambda: AdamIpuOptimizer(0.1), adam, 2, 1.0),
        (lambda: CrossReplicaOptimizer(momentum()), momentum, 2, 0.5),
        (lambda: CrossReplicaOptimizer(new.SGD(0.05, 0.9)), momentum, 2, 0.5),
        (lambda: LossScaleOptimizer(momentum()), momentum, 2, 1.0),
        (lambda: LossScaleOptimizer(new.SGD(0.05, 0.9)), momentum, 2, 1.0),
        (lambda: ALSOptimizerAdam(0.1, update_frequency=1), adam, 2, 1.0),
        (accumulating(momentum), momentum, 4, 1.0),
        (accumulating_scaled, adam, 4, 0.5),
    ],
}


@pytest.mark.parametrize("count", TRAINED)
def test_minimizing_in_a_program_is_plain_training_on_larger_batches(count, replicas):
    strategy = replicas(count)
    with strategy.scope():
        pairs = [(maker(), weights_of()) for maker, *_ in TRAINED[count]]

        @tf.function(jit_compile=True)
        def program(batches):
            for _ in tf.range(BATCHES // count):
                x, y = next(batches)
                for optimizer, weights in pairs:
                    optimizer.minimize(lambda weights=weights, x=x, y=y: loss_of(weights, x, y), weights)

        strategy.run(program, args=(iter(tf.data.Dataset.from_tensor_slices((INPUTS, TARGETS))),))
    for (_, weights), (_, make_plain, size, share) in zip(pairs, TRAINED[count], strict=True):
        for weight, expected in zip(weights, plainly_trained(make_plain(), size, share), strict=True):
            np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-5, atol=1e-6)


def dense():
    return keras.Sequential([keras.layers.Dense(8, "relu", input_shape=(6,)), keras.layers.Dense(3)])


def compiled(optimizer, **options) -> Any:
    model = dense()
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), **options)
    return model


class Scaling(old.SGD):
    """Scales losses as the CNN examples of 2021 did."""

    def get_gradients(self, loss, params):
        return super().get_gradients(64 * loss, params)

    def _resource_apply_dense(self, grad, var, apply_state=None):
        return super()._resource_apply_dense(grad / 64, var, apply_state)


HALVING = keras.callbacks.LearningRateScheduler(lambda _, rate: rate / 2)
FITTED = [
    (lambda: old.SGD(0.1, 0.9),) * 2,
    (lambda: Scaling(0.1, 0.9), lambda: old.SGD(0.1, 0.9)),
    (lambda: OldMomentum(0.1), lambda: old.SGD(0.1, 0.9)),
    (lambda: ALSOptimizerAdam(0.01), lambda: old.Adam(0.01)),
    (lambda: LossScaleOptimizer(new.Adam(0.01)), lambda: new.Adam(0.01)),
    (lambda: tf.compat.v1.train.MomentumOptimizer(0.1, 0.9), None),
]


@pytest.mark.parametrize(("ours", "plain"), FITTED)
def test_models_accumulate_gradients_and_callbacks_set_rates(ours, plain, features, labels, in_scope_and_plain, same):
    callbacks = [HALVING] if plain else []

    def train(make, size, **options):
        model = compiled(make(), **options)
        if size == 4:
            model.set_gradient_accumulation_options(
                gradient_accumulation_steps_per_replica=2, gradient_accumulation_reduction_method="mean"
            )
        arguments = {"batch_size": size, "epochs": 3, "shuffle": False, "callbacks": callbacks, "verbose": 0}
        rates = model.fit(features, labels, **arguments).history.get("lr", [])
        return model.get_weights(), rates

    make = plain or (lambda: old.SGD(0.1, 0.9))
    same(
        *in_scope_and_plain(lambda: train(ours, 4, steps_per_execution=4), lambda: train(make, 8, jit_compile=True)),
        rtol=1e-5,
    )


class Summing(keras.Model):
    """Sums gradients over the replicas, or leaves the sum to its optimizer."""

    by_itself = False

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        if self.by_itself:
            gradients = tf.distribute.get_replica_context().all_reduce("sum", gradients)
        pairs = zip(gradients, self.trainable_variables, strict=True)
        self.optimizer.apply_gradients(pairs, experimental_aggregate_gradients=not self.by_itself)
        return {"loss": loss}


def test_sums_of_a_step_of_its_own_are_not_summed_again_where_they_accumulate(replicas, features, labels, same):
    all_weights = []
    for by_itself in (False, True):
        keras.utils.set_random_seed(1)
        with replicas(2).scope():
            model = Summing(*_inputs_and_outputs())
            model.by_itself = by_itself
            model.compile(old.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(True), steps_per_execution=6)
            model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=3)
            model.fit(features, labels, batch_size=4, shuffle=False, verbose=0)
        all_weights.append(model.get_weights())
    same(*all_weights, rtol=1e-5)


def test_numbers_of_optimizers_are_variables_of_programs(compilations):
    strategy = ipu.IPUStrategy()
    changing = [
        (SGDIpuOptimizer(0.1, 0.5), {"momentum": 0.9}, old.SGD(0.1, 0.5)),
        (AdamIpuOptimizer(0.1, variable_attributes=["epsilon"]), {"beta_1": 0.5, "epsilon": 0.1}, old.Adam(0.1)),
        (OldMomentum(0.1), {"momentum": 0.5, "lr": 0.01}, old.SGD(0.1, 0.9)),
    ]
    with strategy.scope():
        made = [(type(one).from_config(one.get_config()), changes, plain) for one, changes, plain in changing]
        trained = [weights_of()[:1] for _ in made]
    expected = [weights_of()[:1] for _ in made]

    def step(optimizers, variables):
        for optimizer, weights in zip(optimizers, variables, strict=True):
            optimizer.apply_gradients([(tf.constant([[0.5], [-1.0], [0.25]]), weights[0])])

    program = tf.function(lambda: step([one for one, *_ in made], trained), jit_compile=True)
    with strategy.scope():
        strategy.run(program)
    step([plain for *_, plain in made], expected)
    for optimizer, changes, plain in made:
        for name, value in changes.items():
            setattr(optimizer, name, value)
            setattr(plain, name, value)
            assert float(getattr(optimizer, name)) == pytest.approx(value)
    with strategy.scope(), compilations() as names:
        strategy.run(program)
    assert names == []
    step([plain for *_, plain in made], expected)
    for found, plainly in zip(trained, expected, strict=True):
        np.testing.assert_allclose(found[0].numpy(), plainly[0].numpy(), rtol=1e-5)
    with pytest.raises(ValueError, match="`velocity_scaling` cannot become 2.0: .* create another optimizer"):
        made[0][0].velocity_scaling = 2.0
    assert made[1][0].variable_attributes == {"learning_rate", "beta_1", "beta_2", "epsilon"}


def test_slots_have_the_types_asked_for_and_rows_of_tables_are_updated():
    variable = tf.Variable([1.0, 2.0, 3.0], dtype=tf.float16)
    optimizer = AdamIpuOptimizer(m_dtype=tf.float32, vhat_dtype="bfloat16", amsgrad=True)
    for one in (optimizer, SGDIpuOptimizer(0.1, 0.5)):
        one.apply_gradients([(tf.constant([1, 2, 3], tf.float16), variable)])
    own, older = tf.Variable([1.0]), OldMomentum(0.1, slot_dtype="float16")
    older.apply_gradients([(tf.constant([1.0]), own)])
    kinds = [optimizer.get_slot(variable, name).dtype for name in ("m", "v", "vhat")]
    assert kinds == [tf.float32, tf.float16, tf.bfloat16]
    assert [older.get_slot(own, name).dtype for name in ("velocity", "last")] == [tf.float16] * 2
    assert optimizer.get_slot_names() == ["m", "v", "vhat"]
    with ipu.IPUStrategy().scope():
        other = tf.Variable(1.0)
    with pytest.raises(ValueError, match=r"`var` .* was made in the scope of another strategy"):
        optimizer.add_slot(other, "m")
    tables = [tf.Variable(np.ones((4, 2), np.float32)) for _ in range(2)]
    slices = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([1, 1]), tf.constant([4, 2]))
    for one, table in zip((AdamIpuOptimizer(0.1), old.Adam(0.1)), tables, strict=True):
        one.apply_gradients([(slices, table)])
    np.testing.assert_allclose(tables[0].numpy(), tables[1].numpy(), rtol=1e-5)


@keras.saving.register_keras_serializable("tests")
def double(gradient, value):
    return 2 * gradient


def test_optimizers_are_made_anew_from_their_configurations():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.5)
    for optimizer in (
        OldMomentum(0.5, 0.25, slot_dtype="float16", clipnorm=1.0),
        SGDIpuOptimizer(0.5, 0.25, True, momentum_accum_dtype="float16", velocity_scaling=4.0),
        LAMBIpuOptimizer(0.5, weight_decay_rate=0.25, exclude_from_weight_decay=["bias"], v_dtype="float32"),
        ALSOptimizerAdam(schedule, lpf_alpha=0.5),
        ALSGradientAccumulationOptimizer(ALSOptimizer(new.SGD(0.5), 4), 3),
        GradientAccumulationOptimizer(CrossReplicaOptimizer(old.Adam(0.5)), 3, True, True, tf.float16, "mean", "mine"),
        MapGradientOptimizer(old.SGD(0.25), double),
    ):
        copy = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
        assert type(copy) is type(optimizer)
        assert keras.optimizers.serialize(copy) == keras.optimizers.serialize(optimizer)
        inner, inner_copy = getattr(optimizer, "inner_optimizer", None), getattr(copy, "inner_optimizer", None)
        assert type(inner_copy) is type(inner)


@pytest.mark.parametrize("make", [lambda: OldMomentum(0.1), lambda: ALSOptimizer(AdamIpuOptimizer(0.01), 4)])
def test_training_goes_on_from_files_and_checkpoints(make, features, labels, tmp_path, same):
    def fit(model):
        model.fit(features, labels, batch_size=4, shuffle=False, verbose=0)
        return model.get_weights()

    with ipu.IPUStrategy().scope():
        model = compiled(make(), steps_per_execution=12)
        fit(model)
        with pytest.warns(UserWarning, match="HDF5"):
            model.save(tmp_path / "model.h5")
        path = tf.train.Checkpoint(model=model).save(str(tmp_path / "checkpoint"))
        restored = compiled(make(), steps_per_execution=12)
        status = tf.train.Checkpoint(model=restored).restore(path)
        expected = fit(model)
        same(fit(restored), expected)
        status.assert_consumed()
        loaded: Any = keras.models.load_model(tmp_path / "model.h5")
        same(fit(loaded), expected)
        weights = [2 * weight for weight in model.optimizer.get_weights()]
        loaded.optimizer.set_weights(weights)
        same(loaded.optimizer.get_weights(), weights)


SCALING = {
    "als": lambda: ALSOptimizer(old.SGD(1.0), 4, update_frequency=1),
    "old": lambda: LossScaleOptimizer(old.SGD(1.0), initial_scale=4.0),
    "new": lambda: LossScaleOptimizer(new.SGD(1.0), initial_scale=4.0),
}


@pytest.mark.parametrize("kind", SCALING)
def test_an_infinite_gradient_of_one_replica_is_skipped_on_all(kind, replicas):
    strategy = replicas(2)
    with strategy.scope():
        weight, optimizer, results = tf.Variable(0.0), SCALING[kind](), ipu.IPUOutfeedQueue()

        @tf.function(jit_compile=True)
        def program(factors):
            for _ in tf.range(3):
                factor = next(factors)
                optimizer.minimize(lambda factor=factor: weight * factor, [weight])
                scale = optimizer.loss_scaling_factor if kind == "als" else optimizer.loss_scale
                results.enqueue((tf.identity(weight), tf.identity(scale)))

        factors = tf.data.Dataset.from_tensor_slices(np.array([1, 1, np.inf, 1, 2, 2], np.float32))
        strategy.run(program, args=(iter(factors),))
    weights, scales = results.dequeue()
    np.testing.assert_array_equal(weights, [[-2] * 2, [-2] * 2, [-6] * 2])
    np.testing.assert_array_equal(scales[:, 0], [8, 4, 8] if kind == "als" else [4, 2, 2])


def test_half_precision_keeps_an_optimizer_that_scales_and_trains_with_that_of_keras(features, labels):
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        for make, kind in ((lambda: ALSOptimizerSGD(0.1, 0.9), ALSOptimizerSGD), (momentum, LossScaleOptimizer)):
            with ipu.IPUStrategy().scope():
                optimizer, model = make(), dense()
                for _ in range(2 if kind is ALSOptimizerSGD else 1):
                    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(True), steps_per_execution=12)
            history: Any = model.fit(features, labels, batch_size=4, epochs=4, verbose=0)
            assert isinstance(model.optimizer, kind)
            assert history.history["loss"][-1] < history.history["loss"][0]
    finally:
        keras.mixed_precision.set_global_policy("float32")


@pytest.mark.parametrize(("steps", "alone", "counted"), [(1, False, 12), (2, True, 8)])
def test_fit_hands_captured_gradients_to_the_optimizer(steps, alone, counted):
    with ipu.IPUStrategy().scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        model = keras.Sequential([keras.Input([1]), CaptureUpstreamGradients(layer, tag="dense")])
        model.compile(ALSOptimizer(old.SGD(0.0), 2, captured_grads_only=alone), "mse", steps_per_execution=4)
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=steps)
        model.fit(np.ones([8, 1], np.float32), np.zeros([8, 1], np.float32), batch_size=2, verbose=0)
    np.testing.assert_array_equal(model.optimizer.histogram.numpy(), [counted, 0])
    assert int(model.optimizer.iterations) == 4 // steps


@pytest.mark.parametrize("base", [old.SGD, new.SGD])
def test_an_optimizer_that_takes_captured_gradients_needs_no_name(base):
    """`minimize` passes `name=None`, an argument that the SDK's protocol lacks."""
    taken = []

    class Capturing(base):
        supports_captured_grads = True

        def apply_gradients(self, grads_and_vars, captured_grads=None):
            taken.append(captured_grads)
            return super().apply_gradients(grads_and_vars)

    with ipu.IPUStrategy().scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        model = keras.Sequential([keras.Input([1]), CaptureUpstreamGradients(layer, tag="dense")])
        model.compile(Capturing(0.1), "mse")
        model.fit(np.ones([8, 1], np.float32), np.zeros([8, 1], np.float32), batch_size=2, verbose=0)
    assert [list(captured) for captured in taken] == [["dense"]]


@pytest.mark.parametrize("steps", [1, 2])
def test_transformers_of_gradients_get_dense_ones_of_an_embedding(steps):
    """With one step per update, transformers got `IndexedSlices`, which do not support division."""

    def train(transformers):
        keras.utils.set_random_seed(1)
        embedding = keras.layers.Embedding(5, 3, input_length=2)
        model = keras.Sequential([embedding, keras.layers.Flatten(), keras.layers.Dense(1)])
        model.compile(old.SGD(0.1, gradient_transformers=transformers), "mse", steps_per_execution=4)
        if transformers:
            model.set_gradient_accumulation_options(steps)
        model.fit(np.ones([8, 2], np.int32), np.ones([8, 1], np.float32), 2, verbose=0, shuffle=False)
        return model

    with ipu.IPUStrategy().scope():
        transformers = [lambda pairs: [(gradient / 1.0, variable) for gradient, variable in pairs]]
        model = train(transformers)
    assert model.optimizer.gradient_transformers is transformers
    if steps == 1:
        for weight, expected in zip(model.get_weights(), train(None).get_weights(), strict=True):
            np.testing.assert_allclose(weight, expected, rtol=1e-5)


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("inner", [old.SGD, old.Adam, new.SGD])
def test_weights_of_float16_are_updated_by_gradients_of_float32(inner, stages, configure):
    """Optimizers of Keras 2 require gradients of the dtype of the variable. Keras 3 casts gradients."""
    configure(stages)

    def train(make, dtype):
        keras.utils.set_random_seed(1)
        with ipu.IPUStrategy().scope():
            inputs = keras.Input([4], dtype="float16")
            hidden = keras.layers.Dense(4, dtype="float16")(inputs)
            model = keras.Model(inputs, keras.layers.Dense(2, dtype="float16")(hidden))
            options = {"gradient_accumulation_steps_per_replica": 8}
            if stages == 2:
                model.set_pipeline_stage_assignment(staged(model))
                model.set_pipelining_options(**options, gradient_accumulation_dtype=dtype)
            else:
                model.set_gradient_accumulation_options(**options, dtype=dtype)
            model.compile(make(), "mse", steps_per_execution=8)
        model.fit(np.ones([16, 4], "f2"), np.ones([16, 2], "f2"), 2, epochs=3, verbose=0, shuffle=False)
        return model.get_weights()

    def staged(model):
        assignments = model.get_pipeline_stage_assignment()
        for stage, one in enumerate(assignments):
            one.pipeline_stage = stage
        return assignments

    expected = train(lambda: inner(0.01), None)
    for found in (train(lambda: inner(0.01), tf.float32), train(lambda: ALSOptimizer(inner(0.01)), None)):
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == np.float16
            np.testing.assert_allclose(one, other, rtol=0.02, atol=0.005)


PIPELINED = [
    (1, momentum, momentum),
    (1, lambda: LossScaleOptimizer(new.Adam(0.1)), lambda: new.Adam(0.1)),
    (1, lambda: Scaling(0.05, 0.9), momentum),
    (2, lambda: OldMomentum(0.05), momentum),
    (2, lambda: MapGradientOptimizer(AdamIpuOptimizer(0.1), double), lambda: old.Adam(0.1)),
]


@pytest.mark.parametrize(("count", "make", "plain"), PIPELINED)
def test_pipelines_take_optimizers_of_either_kind(count, make, plain, configure):
    configure(2 * count)
    strategy, losses = ipu.IPUStrategy(), ipu.IPUOutfeedQueue()
    with strategy.scope():
        (kernel, bias), optimizer = weights_of(), make()

        @tf.function(jit_compile=True)
        def program(batches):
            pipelining.pipeline(
                [
                    lambda x, y: (tf.matmul(x, kernel), y),
                    lambda z, y: tf.reduce_mean((z + bias - y) ** 2),
                ],
                gradient_accumulation_count=4,
                repeat_count=BATCHES // 4 // count,
                infeed_queue=batches._infeed_queue,
                outfeed_queue=losses,
                outfeed_loss=True,
                optimizer_function=lambda loss: pipelining.OptimizerFunctionOutput(optimizer, loss),
            )

        strategy.run(program, args=(iter(tf.data.Dataset.from_tensor_slices((INPUTS, TARGETS))),))
    for found, expected in zip((kernel, bias), plainly_trained(plain(), 4 * count), strict=True):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)
    first = [loss_of(weights_of(), x, y) for x, y in zip(INPUTS[:4], TARGETS[:4], strict=True)]
    if count == 1:  # The losses are not scaled.
        np.testing.assert_allclose(losses.dequeue()[:4].numpy(), first, rtol=1e-5)


class Twice(keras.Model):
    def train_step(self, data):
        for _ in range(2):
            self.optimizer.apply_gradients([(tf.zeros_like(weight), weight) for weight in self.trainable_variables])
        return {}


def test_what_does_not_go_together_is_refused(features, labels, refused):
    for inner in (ALSOptimizerSGD(), LossScaleOptimizer(old.SGD()), LossScaleOptimizer(new.SGD())):
        refused(ValueError, "which scales the loss itself", ALSOptimizer, inner)
    refused(ValueError, "`opt` must be a `keras.optimizers.Optimizer`", CrossReplicaOptimizer, "sgd")
    refused(ValueError, "`m_dtype` must be a floating-point type", AdamIpuOptimizer, m_dtype="int32")
    refused(TypeError, "weight_decay", AdamIpuOptimizer, weight_decay=0.1)
    with_minimize = type("Own", (old.SGD,), {"minimize": lambda self, *args, **kwargs: None})
    with ipu.IPUStrategy().scope():
        for optimizer, kind, message in (
            (with_minimize(), dense, "defines its own `minimize`"),
            (old.SGD(), Twice, "gradients twice"),
        ):
            model = kind() if kind is dense else Twice(*_inputs_and_outputs())
            model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(True), steps_per_execution=2)
            model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
            with pytest.raises(ValueError, match=message):
                model.fit(features, labels, batch_size=4, verbose=0)


def _inputs_and_outputs():
    inputs = keras.Input([6])
    return inputs, keras.layers.Dense(3)(inputs)
