"""Numbers of optimizers that change between runs, those that do not, and what is kept of them."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu.keras.optimizers import (
    AdamIpuOptimizer,
    LAMBIpuOptimizer,
    RMSpropIpuOptimizer,
    SGDIpuOptimizer,
)

GRADIENT = np.array([0.5, -1.0], np.float32)

# An optimizer, what of it changes after each step, and the plain one.
CHANGING = {
    "sgd": (SGDIpuOptimizer, {"momentum": (0.1, 0.9, 0.5)}, keras.optimizers.SGD),
    "adam": (AdamIpuOptimizer, {"beta_1": (0.9, 0.5, 0.7), "epsilon": (1e-7, 1e-2, 1e-3)}, keras.optimizers.Adam),
    "rmsprop": (RMSpropIpuOptimizer, {"rho": (0.9, 0.5, 0.7), "momentum": (0.1, 0.5, 0.9)}, keras.optimizers.RMSprop),
}


@pytest.mark.parametrize("kind", CHANGING)
def test_variable_attributes_change_between_runs_of_one_program(replicas, compilations, kind):
    ours, changes, plain = CHANGING[kind]
    strategy = replicas(2)
    first = {name: values[0] for name, values in changes.items()}
    with strategy.scope():
        weight = keras.Variable(np.ones(2, np.float32))
        optimizer = ours(0.1, **first, variable_attributes=list(changes))
        optimizer.build([weight])

    @tf.function(jit_compile=True)
    def step():
        optimizer.apply_gradients([(tf.constant(GRADIENT), weight)])

    expected, other = keras.Variable(np.ones(2, np.float32)), plain(0.1, **first)
    strategy.run(step)
    other.apply_gradients([(tf.constant(2 * GRADIENT), expected)])  # Gradients are summed over the replicas.
    with compilations() as names:
        for at in (1, 2):
            for name, values in changes.items():
                setattr(optimizer, name, values[at])
                setattr(other, name, values[at])
                assert getattr(optimizer, name) == np.float32(values[at])
            strategy.run(step)
            other.apply_gradients([(tf.constant(2 * GRADIENT), expected)])
    assert names == []
    np.testing.assert_allclose(weight.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)


def test_momentum_that_may_come_has_its_slot():
    weight, optimizer = keras.Variable([1.0, 1.0]), SGDIpuOptimizer(0.1, variable_attributes=["momentum"])
    optimizer.apply_gradients([(tf.constant(GRADIENT), weight)])
    np.testing.assert_allclose(optimizer.get_slot(weight, "momentum").numpy(), -0.1 * GRADIENT)


def test_constant_of_a_program_is_not_changed_behind_its_back(strategy):
    with strategy.scope():
        weight, optimizer = keras.Variable([1.0, 1.0]), SGDIpuOptimizer(0.1, 0.5)
        optimizer.build([weight])
    optimizer.momentum = 0.9  # No program has it yet.
    step = tf.function(lambda: optimizer.apply_gradients([(tf.constant(GRADIENT), weight)]), jit_compile=True)
    strategy.run(step)
    with pytest.raises(ValueError, match=r"`momentum` was to become 0.1, and programs were compiled with 0.9"):
        optimizer.momentum = 0.1
    for name, value in (("velocity_scaling", 2.0), ("nesterov", True)):
        with pytest.raises(ValueError, match=f"`{name}` was to become {value}, .* make another optimizer"):
            setattr(optimizer, name, value)
    optimizer.momentum = 0.9  # As it is.
    optimizer.learning_rate = 1.0  # It always is variable.


def test_marks_are_made_before_the_first_step():
    optimizer = LAMBIpuOptimizer(0.1, variable_attributes=["beta_1"])
    assert optimizer.variable_attributes == {"beta_1", "learning_rate"}
    optimizer.mark_as_variable("weight_decay_rate", "learning_rate")
    optimizer.mark_as_constant("beta_1")
    optimizer.apply_gradients([(tf.constant(GRADIENT), keras.Variable([1.0, 1.0]))])
    assert [variable.name for variable in optimizer.variables if variable.shape.rank == 0][2:] == ["weight_decay_rate"]
    with pytest.raises(RuntimeError, match="`epsilon` was to be marked when the optimizer was built already"):
        optimizer.mark_as_variable("epsilon")


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (
            lambda: SGDIpuOptimizer(variable_attributes=["nesterov"]),
            ValueError,
            "'nesterov'; the attributes.*`momentum`",
        ),
        (lambda: SGDIpuOptimizer(variable_attributes="momentum"), TypeError, r"write `\['momentum'\]`"),
        (lambda: SGDIpuOptimizer().mark_as_constant("learning_rate"), ValueError, "always is a variable"),
        (
            lambda: SGDIpuOptimizer(velocity_scaling=0),
            ValueError,
            "`velocity_scaling` must be a number above 0, but is 0",
        ),
        (
            lambda: RMSpropIpuOptimizer(velocity_dtype="int32"),
            ValueError,
            "`velocity_dtype` must be a floating-point type",
        ),
    ],
)
def test_attributes_are_checked(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_variable_attribute_is_a_finite_number():
    optimizer = SGDIpuOptimizer(momentum=0.5, variable_attributes=["momentum"])
    optimizer.build([keras.Variable([1.0])])
    with pytest.raises(TypeError, match="`momentum` is a variable of programs"):
        setattr(optimizer, "momentum", "0.5")  # noqa: B010  (A type checker refuses the plain form.)
    with pytest.raises(ValueError, match="`momentum` must be finite, but is nan"):
        optimizer.momentum = float("nan")
    with pytest.raises(AttributeError, match="`SGDIpuOptimizer` has no attribute `speed`"):
        optimizer.speed  # noqa: B018


def test_state_is_restored_with_its_options(tmp_path):
    optimizer = SGDIpuOptimizer(
        0.1, 0.5, momentum_accum_dtype="float16", velocity_scaling=256.0, variable_attributes=["momentum"]
    )
    weight = keras.Variable([1.0, 1.0], name="w")
    optimizer.apply_gradients([(tf.constant(GRADIENT), weight)])
    optimizer.momentum = 0.75
    path = tf.train.Checkpoint(weight=weight, optimizer=optimizer).save(str(tmp_path / "checkpoint"))
    config = keras.saving.serialize_keras_object(optimizer)
    optimizer.apply_gradients([(tf.constant(GRADIENT), weight)])

    again, other = keras.Variable([0.0, 0.0], name="w"), keras.saving.deserialize_keras_object(config)
    other.build([again])
    tf.train.Checkpoint(weight=again, optimizer=other).restore(path).assert_consumed()
    assert (other.momentum, other.velocity_scaling) == (0.75, 256.0)
    assert other.get_slot(again, "momentum").dtype == "float16"
    other.apply_gradients([(tf.constant(GRADIENT), again)])
    np.testing.assert_array_equal(again.numpy(), weight.numpy())


def test_scaled_velocity_keeps_what_float16_would_lose():
    moved = {}
    for scale in (1.0, 2.0**12):
        weight = keras.Variable([0.0])
        optimizer = SGDIpuOptimizer(1.0, 0.5, momentum_accum_dtype="float16", velocity_scaling=scale)
        for _ in range(2):
            optimizer.apply_gradients([(tf.constant([2e-8]), weight)])
        moved[scale] = -weight.numpy()[0]
    exact = 2e-8 + 3e-8
    assert abs(moved[2.0**12] - exact) < 0.01 * exact < abs(moved[1.0] - exact)
