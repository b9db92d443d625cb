"""SGD, Adam, LAMB and RMSprop with slots of other types, compared with Keras's optimizers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.keras.optimizers import (
    AdamIpuOptimizer,
    IpuOptimizerBase,
    LAMBIpuOptimizer,
    RMSpropIpuOptimizer,
    SGDIpuOptimizer,
)

PLAIN = {
    "sgd": (lambda: SGDIpuOptimizer(0.05), lambda: keras.optimizers.SGD(0.05)),
    "momentum": (lambda: SGDIpuOptimizer(0.05, 0.9), lambda: keras.optimizers.SGD(0.05, 0.9)),
    "scaled": (lambda: SGDIpuOptimizer(0.05, 0.9, velocity_scaling=64), lambda: keras.optimizers.SGD(0.05, 0.9)),
    "nesterov": (lambda: SGDIpuOptimizer(0.05, 0.9, True), lambda: keras.optimizers.SGD(0.05, 0.9, True)),
    "adam": (lambda: AdamIpuOptimizer(0.1), lambda: keras.optimizers.Adam(0.1)),
    "amsgrad": (lambda: AdamIpuOptimizer(0.1, amsgrad=True), lambda: keras.optimizers.Adam(0.1, amsgrad=True)),
    "clipped": (
        lambda: AdamIpuOptimizer(0.1, clipnorm=0.1, weight_decay=0.1),
        lambda: keras.optimizers.Adam(0.1, clipnorm=0.1, weight_decay=0.1),
    ),
    "lamb": (lambda: LAMBIpuOptimizer(0.1), lambda: keras.optimizers.Lamb(0.1, epsilon=1e-6)),
    "rmsprop": (lambda: RMSpropIpuOptimizer(0.1), lambda: keras.optimizers.RMSprop(0.1)),
    "rmsprop with all": (
        lambda: RMSpropIpuOptimizer(0.01, momentum=0.9, centered=True),
        lambda: keras.optimizers.RMSprop(0.01, momentum=0.9, centered=True),
    ),
}


def trained(optimizer, steps=4):
    """Returns weights after some eager steps on fixed gradients."""
    random = np.random.default_rng(3)
    weights = [keras.Variable(random.normal(size=shape).astype(np.float32)) for shape in ((4, 3), (3,))]
    for _ in range(steps):
        gradients = [tf.constant(random.normal(size=weight.shape).astype(np.float32)) for weight in weights]
        optimizer.apply_gradients(zip(gradients, weights, strict=True))
    return [weight.numpy() for weight in weights]


@pytest.mark.parametrize("kind", PLAIN)
def test_in_float32_it_is_the_plain_optimizer(kind):
    make, make_plain = PLAIN[kind]
    for result, expected in zip(trained(make()), trained(make_plain()), strict=True):
        np.testing.assert_allclose(result, expected, rtol=2e-5, atol=1e-6)


def test_slots_have_the_types_asked_for():
    variable = keras.Variable(np.ones(3), dtype="float16")
    adam = AdamIpuOptimizer(m_dtype=tf.float32, vhat_dtype="bfloat16", amsgrad=True)
    sgd = SGDIpuOptimizer(momentum=0.5, momentum_accum_dtype=tf.float32)
    lamb = LAMBIpuOptimizer(v_dtype="float32")
    types = {"velocity_dtype": "float32", "average_gradient_dtype": "bfloat16"}
    rmsprop = RMSpropIpuOptimizer(momentum=0.5, centered=True, **types)
    for optimizer in (adam, sgd, lamb, rmsprop):
        optimizer.apply_gradients([(tf.constant([1, 2, 3], tf.float16), variable)])
    kinds = {name: adam.get_slot(variable, name).dtype for name in ("m", "v", "vhat")}
    assert kinds == {"m": "float32", "v": "float16", "vhat": "bfloat16"}
    assert sgd.get_slot(variable, "momentum").dtype == "float32"
    assert [lamb.get_slot(variable, name).dtype for name in ("m", "v")] == ["float16", "float32"]
    kinds = {name: rmsprop.get_slot(variable, name).dtype for name in ("velocity", "momentum", "average_gradient")}
    assert kinds == {"velocity": "float32", "momentum": "float16", "average_gradient": "bfloat16"}
    assert variable.dtype == "float16"
    assert np.isfinite(variable.numpy()).all()


def test_a_float32_moment_and_a_scaled_velocity_hold_what_float16_would_lose():
    # The square of 1e-4 is below what float16 has.
    steps, moved = {}, {}
    for dtype in (None, tf.float32):
        variable = keras.Variable(1.0, dtype="float16")
        optimizer = AdamIpuOptimizer(0.125, epsilon=1e-8, v_dtype=dtype, m_dtype=dtype)
        for _ in range(2):
            optimizer.apply_gradients([(tf.constant(1e-4, tf.float16), variable)])
        steps[dtype] = float(optimizer.get_slot(variable, "v").numpy())
    assert steps[None] == 0 < steps[tf.float32]
    for scale in (1.0, 2.0**12):
        weight = keras.Variable([0.0])
        optimizer = SGDIpuOptimizer(1.0, 0.5, momentum_accum_dtype="float16", velocity_scaling=scale)
        for _ in range(2):
            optimizer.apply_gradients([(tf.constant([2e-8]), weight)])
        moved[scale] = -weight.numpy()[0]
    exact = 2e-8 + 3e-8
    assert abs(moved[2.0**12] - exact) < 0.01 * exact < abs(moved[1.0] - exact)


def test_without_debiasing_the_first_step_of_adam_is_biased():
    variable = keras.Variable(1.0)
    AdamIpuOptimizer(0.1, epsilon=0.0, debiasing=False).apply_gradients([(tf.constant(2.0), variable)])
    np.testing.assert_allclose(variable.numpy(), 1 - 0.1 * (0.1 * 2) / np.sqrt(0.001 * 4), rtol=1e-5)


def test_lamb_decays_and_scales_what_is_not_excluded_and_stays_without_a_direction():
    decayed, bias = keras.Variable([3.0, 4.0], name="kernel"), keras.Variable([3.0, 4.0], name="bias")
    options = {"weight_decay_rate": 0.5, "exclude_from_weight_decay": ["bias"], "weight_norm_clip": 2.0}
    optimizer = LAMBIpuOptimizer(0.1, epsilon=0.0, **options)
    gradient = tf.constant([1.0, -1.0])
    optimizer.apply_gradients([(gradient, decayed), (gradient, bias)])
    step = np.array([1.0, -1.0]) + 0.5 * np.array([3.0, 4.0])
    np.testing.assert_allclose(decayed.numpy(), [3, 4] - 0.1 * step * 2.0 / np.linalg.norm(step), rtol=1e-5)
    np.testing.assert_allclose(bias.numpy(), [3 - 0.1, 4 + 0.1], rtol=1e-5)
    adapted = keras.Variable([3.0, 4.0], name="bias")
    options = {"exclude_from_weight_decay": ["bias"], "exclude_from_layer_adaptation": [], "debiasing": True}
    LAMBIpuOptimizer(0.1, epsilon=0.0, **options).apply_gradients([(gradient, adapted)])
    np.testing.assert_allclose(adapted.numpy(), np.array([3, 4]) - 0.1 * np.array([1, -1]) * 5 / np.sqrt(2), rtol=1e-5)
    still = keras.Variable([3.0, 4.0])
    LAMBIpuOptimizer(0.1).apply_gradients([(tf.zeros(2), still)])
    np.testing.assert_array_equal(still.numpy(), [3, 4])


def test_sparse_gradients_update_their_rows():
    for make_ipu, make_plain in (PLAIN["momentum"], PLAIN["adam"]):
        results = []
        for make in (make_ipu, make_plain):
            table, optimizer = keras.Variable(np.ones((4, 2), np.float32)), make()
            for rows in ([0, 1], [1, 1]):
                slices = tf.IndexedSlices(tf.ones([2, 2]), tf.constant(rows), tf.constant([4, 2]))
                gradient = slices if make is make_ipu else tf.convert_to_tensor(slices)
                optimizer.apply_gradients([(gradient, table)])
            results.append(table.numpy())
        np.testing.assert_allclose(*results, rtol=1e-5)


def with_options():
    options = {"momentum_accum_dtype": "float16", "velocity_scaling": 256.0, "variable_attributes": ["momentum"]}
    return SGDIpuOptimizer(0.1, 0.5, **options)


@pytest.mark.parametrize("make", [PLAIN["amsgrad"][0], PLAIN["rmsprop with all"][0], with_options])
def test_slots_and_variable_attributes_are_saved_in_checkpoints_and_restored(make, tmp_path):
    variable, optimizer = keras.Variable([1.0, 2.0], name="w"), make()
    gradients = [tf.constant([0.5, -0.25]), tf.constant([1.0, 2.0])]
    optimizer.apply_gradients([(gradients[0], variable)])
    if make is with_options:
        optimizer.momentum = 0.75
    path = tf.train.Checkpoint(variable=variable, optimizer=optimizer).save(str(tmp_path / "checkpoint"))
    optimizer.apply_gradients([(gradients[1], variable)])
    restored, restored_optimizer = keras.Variable([0.0, 0.0], name="w"), make()
    restored_optimizer.build([restored])
    tf.train.Checkpoint(variable=restored, optimizer=restored_optimizer).restore(path).assert_consumed()
    if make is with_options:
        dtype = restored_optimizer.get_slot(restored, "momentum").dtype
        assert (restored_optimizer.momentum, dtype) == (0.75, "float16")
    restored_optimizer.apply_gradients([(gradients[1], restored)])
    np.testing.assert_array_equal(restored.numpy(), variable.numpy())


def test_an_optimizer_is_recreated_from_its_configuration(recreated):
    recreated(SGDIpuOptimizer(0.5, 0.25, True, momentum_accum_dtype="float16", clipnorm=1.0), with_options())
    recreated(AdamIpuOptimizer(0.5, amsgrad=True, m_dtype=tf.float16, debiasing=False, outline_apply_gradients=True))
    lamb = {"exclude_from_weight_decay": ["bias"], "exclude_from_layer_adaptation": [], "v_dtype": "float32"}
    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.5)
    recreated(LAMBIpuOptimizer(schedule, **lamb, optimizer_compute_precisions=(tf.float16, tf.float32)))


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: SGDIpuOptimizer(momentum_accum_dtype=tf.int32), ValueError, "`momentum_accum_dtype` must be a float"),
        (lambda: AdamIpuOptimizer(m_dtype="half-ish"), ValueError, "`m_dtype` must be a floating-point type"),
        (lambda: RMSpropIpuOptimizer(velocity_dtype="int32"), ValueError, "`velocity_dtype` must be a floating-point"),
        (lambda: SGDIpuOptimizer(velocity_scaling=0), ValueError, "`velocity_scaling` .* a number above 0, but is 0"),
        (lambda: AdamIpuOptimizer(debiasing=1), TypeError, "`debiasing` must be True or False, but is 1"),
        (lambda: AdamIpuOptimizer(outline_apply_gradients=1), TypeError, "`outline_apply_gradients` must be True"),
        (lambda: SGDIpuOptimizer(optimizer_compute_precisions=()), ValueError, "a list of one type or more"),
        (lambda: SGDIpuOptimizer(optimizer_compute_precisions=(None,)), ValueError, "must hold floating-point types"),
        (lambda: LAMBIpuOptimizer(optimizer_compute_precisions=(tf.float32,)), ValueError, "a list of two types"),
        (lambda: LAMBIpuOptimizer(debiasing="no"), TypeError, "`debiasing` must be True or False"),
        (lambda: SGDIpuOptimizer(variable_attributes=["nesterov"]), ValueError, "'nesterov'; the .*`momentum`"),
        (lambda: SGDIpuOptimizer(variable_attributes="momentum"), TypeError, r"write `\['momentum'\]`"),
        (lambda: SGDIpuOptimizer().mark_as_constant("learning_rate"), ValueError, "is always a variable"),
    ],
)
def test_bad_arguments_are_named(make, kind, message, refused):
    refused(kind, message, make)


class _Halving(IpuOptimizerBase):
    """Applies half of the gradient, and counts steps in a slot of another type and shape."""

    def build(self, variables):
        super().build(variables)
        for variable in variables:
            self.add_slot(variable, "steps", "ones", shape=(), dtype=tf.int32)
            self.add_slot_with_dtype(variable, "last", tf.float16)

    def update_step(self, gradient, variable, learning_rate):
        del learning_rate
        self.assign_add(self.get_slot(variable, "steps"), 1)
        self.assign(self.get_slot(variable, "last"), gradient)
        self.assign_sub(variable, gradient / 2)


def test_an_optimizer_of_the_users_has_slots_of_any_type():
    variable = keras.Variable([1.0, 2.0])
    optimizer = _Halving("halving", learning_rate=1.0)
    optimizer.apply_gradients([(tf.constant([1.0, 1.0]), variable)])
    assert optimizer.get_slot_dtype(variable, "anything") == tf.float32
    assert optimizer.get_slot(variable, "steps").numpy() == 2
    assert optimizer.add_slot(variable, "last") is optimizer.get_slot(variable, "last")
    assert optimizer.get_slot(variable, "last").dtype == "float16"
    np.testing.assert_array_equal(variable.numpy(), [0.5, 1.5])


def test_a_variable_of_another_scope_is_refused():
    with ipu.IPUStrategy().scope():
        variable = keras.Variable(1.0)
    with pytest.raises(ValueError, match="create model and optimizer in one `strategy.scope"):
        AdamIpuOptimizer().build([variable])


GRADIENT = np.array([0.5, -1.0], np.float32)

# An optimizer, the values of its attributes in each step, and the optimizer of Keras.
CHANGING = [
    (SGDIpuOptimizer, {"momentum": (0.1, 0.9, 0.5)}, keras.optimizers.SGD),
    (AdamIpuOptimizer, {"beta_1": (0.9, 0.5, 0.7), "epsilon": (1e-7, 1e-2, 1e-3)}, keras.optimizers.Adam),
    (RMSpropIpuOptimizer, {"rho": (0.9, 0.5, 0.7), "momentum": (0.1, 0.5, 0.9)}, keras.optimizers.RMSprop),
    (LAMBIpuOptimizer, {"epsilon": (1e-6, 1e-2, 1e-3)}, keras.optimizers.Lamb),
]


def test_variable_attributes_change_between_runs_of_one_program(replicas, compilations):
    strategy = replicas(2)
    cases = []
    for ipu_type, changes, plain_type in CHANGING:
        first = {name: values[0] for name, values in changes.items()}
        with strategy.scope():
            weight = keras.Variable(np.ones(2, np.float32))
            optimizer = ipu_type(0.1, **first, variable_attributes=list(changes))
            optimizer.build([weight])
        plain, expected = plain_type(0.1, **first), keras.Variable(np.ones(2, np.float32))
        cases.append((optimizer, weight, changes, plain, expected))

    @tf.function(jit_compile=True)
    def program():
        for optimizer, weight, *_ in cases:
            optimizer.apply_gradients([(tf.constant(GRADIENT), weight)])

    def step():
        strategy.run(program)
        for *_, plain, expected in cases:
            plain.apply_gradients([(tf.constant(2 * GRADIENT), expected)])  # Summed over the replicas.

    step()
    with compilations() as names:
        for index in (1, 2):
            for optimizer, _, changes, plain, _ in cases:
                for name, values in changes.items():
                    setattr(optimizer, name, values[index])
                    setattr(plain, name, values[index])
                    assert getattr(optimizer, name) == np.float32(values[index])
            step()
    assert names == []
    for _, weight, _, _, expected in cases:
        np.testing.assert_allclose(weight.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)


def test_marks_are_made_before_the_first_step():
    weight, sgd = keras.Variable([1.0, 1.0]), SGDIpuOptimizer(0.1, variable_attributes=["momentum"])
    sgd.apply_gradients([(tf.constant(GRADIENT), weight)])
    np.testing.assert_allclose(sgd.get_slot(weight, "momentum").numpy(), -0.1 * GRADIENT)
    optimizer = LAMBIpuOptimizer(0.1, variable_attributes=["beta_1"])
    assert optimizer.variable_attributes == {"beta_1", "learning_rate"}
    optimizer.mark_as_variable("weight_decay_rate", "learning_rate")
    optimizer.mark_as_constant("beta_1")
    optimizer.apply_gradients([(tf.constant(GRADIENT), keras.Variable([1.0, 1.0]))])
    assert [variable.name for variable in optimizer.variables if variable.shape.rank == 0][2:] == ["weight_decay_rate"]
    with pytest.raises(RuntimeError, match="`epsilon` cannot be marked, because the optimizer is already built"):
        optimizer.mark_as_variable("epsilon")


def test_constant_of_a_program_is_not_changed_behind_its_back(strategy):
    with strategy.scope():
        weight, optimizer = keras.Variable([1.0, 1.0]), SGDIpuOptimizer(0.1, 0.5)
        optimizer.build([weight])
    optimizer.momentum = 0.9  # No program has it yet.
    step = tf.function(lambda: optimizer.apply_gradients([(tf.constant(GRADIENT), weight)]), jit_compile=True)
    strategy.run(step)
    with pytest.raises(ValueError, match=r"`momentum` cannot become 0.1: programs were compiled with the constant 0.9"):
        optimizer.momentum = 0.1
    for name, value in (("velocity_scaling", 2.0), ("nesterov", True)):
        with pytest.raises(ValueError, match=f"`{name}` cannot become {value}: .* create another optimizer"):
            setattr(optimizer, name, value)
    optimizer.momentum = 0.9  # The same value is accepted.
    optimizer.learning_rate = 1.0  # It is always variable.


def test_variable_attribute_is_a_finite_number():
    optimizer = SGDIpuOptimizer(momentum=0.5, variable_attributes=["momentum"])
    optimizer.build([keras.Variable([1.0])])
    with pytest.raises(TypeError, match="`momentum` is a variable of programs"):
        setattr(optimizer, "momentum", "0.5")  # noqa: B010  (A type checker rejects an assignment.)
    with pytest.raises(ValueError, match="`momentum` must be finite, but is nan"):
        optimizer.momentum = float("nan")
    with pytest.raises(AttributeError, match="`SGDIpuOptimizer` has no attribute `speed`"):
        optimizer.speed  # noqa: B018
