"""The wrappers of Keras optimizers against plain Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.keras.optimizers import CrossReplicaOptimizer, GradientAccumulationOptimizer, MapGradientOptimizer
from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod


def momentum():
    return keras.optimizers.SGD(0.05, 0.9)


def adam():
    return keras.optimizers.Adam(0.1)


def clipped():
    return keras.optimizers.SGD(0.1, clipvalue=0.5, weight_decay=0.01)


def accumulating(inner, number=2, **options):
    return lambda: GradientAccumulationOptimizer(inner(), number, **options)


# By the number of replicas: the wrapper, the optimizer of Keras, its micro-batches per update and the factor of their losses.
TRAINED = {
    1: [
        (accumulating(adam, reduction_method="mean"), adam, 2, 0.5),
        (accumulating(momentum, reduction_method="running_mean"), momentum, 2, 0.5),
        (accumulating(clipped, 4), clipped, 4, 1.0),  # Clipping and weight decay happen once an update.
        (lambda: MapGradientOptimizer(momentum(), lambda gradient, _: 3 * gradient), momentum, 1, 3.0),
    ],
    2: [
        (accumulating(momentum), momentum, 4, 1.0),
        (accumulating(lambda: CrossReplicaOptimizer(adam())), adam, 4, 0.5),
        (lambda: CrossReplicaOptimizer(momentum()), momentum, 2, 0.5),
    ],
}


def groups(size):
    return [list(range(first, first + size)) for first in range(0, 8, size)]


def assert_close(result, expected):
    for actual_value, expected_value in zip(result, expected, strict=True):
        np.testing.assert_allclose(actual_value, expected_value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", TRAINED)
def test_a_wrapper_trains_as_the_plain_optimizer_on_larger_batches(trained_on, plainly_trained, count):
    results = trained_on(count, *(make for make, *_ in TRAINED[count]))
    for result, (_, make_plain, size, share) in zip(results, TRAINED[count], strict=True):
        assert_close(result, plainly_trained(make_plain(), groups(size), share))


def test_the_mapping_function_gets_the_value_of_the_variable():
    values = []
    variable = keras.Variable([2.0])

    def decay(gradient, value):
        values.append(value)
        return gradient + 0.5 * value

    MapGradientOptimizer(keras.optimizers.SGD(1.0), decay).apply_gradients([(tf.constant([0.25]), variable)])
    assert variable.numpy() == [0.75]
    assert tf.is_tensor(values[0])


def test_gradients_accumulate_in_the_type_asked_for_and_by_rows_and_where_there_are_any(strategy):
    with strategy.scope():
        halves = [
            (
                keras.Variable(0.0, dtype="float16"),
                GradientAccumulationOptimizer(keras.optimizers.SGD(0.5), 5, dtype=dtype),
            )
            for dtype in (None, tf.float32, lambda _: "float32")
        ]
        table, used, unused = keras.Variable(np.zeros((4, 2), np.float32)), keras.Variable(1.0), keras.Variable(1.0)
        partial = GradientAccumulationOptimizer(keras.optimizers.SGD(1.0), 2, reduction_method="MEAN")
        partial.build([unused, table, used])

    @tf.function(jit_compile=True)
    def program(gradients, rows):
        for index in tf.range(5):
            for variable, optimizer in halves:
                optimizer.apply_gradients([(tf.gather(gradients, index), variable)])
        for index in tf.range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(table.value, rows[index]))
            partial.apply([None, tape.gradient(loss, table.value), tf.constant(1.0)])

    gradients = tf.constant([2048.0, 0.5, 0.5, 0.5, 0.5], tf.float16)  # In float16, their sum is 2048.
    strategy.run(program, args=(gradients, tf.constant([[0, 2, 2], [1, 2, 0]])))
    assert [variable.numpy() for variable, _ in halves] == [-1024, -1025, -1025]
    np.testing.assert_array_equal(table.numpy(), [[-1, -1], [-0.5, -0.5], [-1.5, -1.5], [0, 0]])
    assert (used.numpy(), unused.numpy()) == (0.0, 1.0)


def test_a_model_trains_in_the_scope(strategy, regression, plainly_trained):
    inputs, targets = regression
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
        optimizer = GradientAccumulationOptimizer(keras.optimizers.SGD(0.1), 2)
        model.compile(optimizer, "mse", steps_per_execution=8)
    model.fit(inputs.reshape(-1, 3), targets.reshape(-1, 1), batch_size=4, shuffle=False, verbose=0)
    assert_close(model.get_weights(), plainly_trained(keras.optimizers.SGD(0.1), groups(2)))


def stepping(strategy):
    """Returns a variable, its optimizer, and a function that runs one update."""
    with strategy.scope():
        variable = keras.Variable([1.0, 2.0], name="weights")
        optimizer = GradientAccumulationOptimizer(keras.optimizers.Adam(0.1), 2)

    @tf.function(jit_compile=True)
    def program():
        for _ in tf.range(2):
            optimizer.apply_gradients([(variable.value * 2.0, variable)])

    return variable, optimizer, lambda: strategy.run(program)


def test_variables_rate_and_iterations_are_the_wrapped_optimizers_and_checkpoints_have_all(strategy, tmp_path):
    variable, optimizer, step = stepping(strategy)
    step()
    path = tf.train.Checkpoint(variable=variable, optimizer=optimizer).save(str(tmp_path / "checkpoint"))
    step()
    restored, restored_optimizer, step_restored = stepping(strategy)
    with strategy.scope():
        restored_optimizer.build([restored])
    tf.train.Checkpoint(variable=restored, optimizer=restored_optimizer).restore(path).assert_consumed()
    assert int(restored_optimizer.iterations) == 1
    step_restored()
    np.testing.assert_array_equal(restored.numpy(), variable.numpy())

    inner = [slot.path for slot in optimizer.inner_optimizer.variables]
    assert [slot.path for slot in optimizer.variables][-len(inner) :] == inner
    assert {"weights_accumulator", "mini_batches"} <= {slot.name for slot in optimizer.variables}
    assert all(slot.value.device.endswith("IPU:0") for slot in optimizer.variables)
    assert int(optimizer.iterations) == 2
    optimizer.learning_rate = 0.0
    step()
    assert float(optimizer.inner_optimizer.learning_rate) == 0.0
    np.testing.assert_array_equal(variable.numpy(), restored.numpy())


@keras.saving.register_keras_serializable("tests")
def half(variable):
    return "float16"


@keras.saving.register_keras_serializable("tests")
def double(gradient, value):
    return 2 * gradient


def test_an_optimizer_is_recreated_from_its_configuration(recreated):
    optimizers = [
        GradientAccumulationOptimizer(keras.optimizers.SGD(0.25), 3, True, True, tf.float16, "mean", "mine"),
        GradientAccumulationOptimizer(CrossReplicaOptimizer(keras.optimizers.Adam(0.5)), 3, dtype=half),
        MapGradientOptimizer(keras.optimizers.SGD(0.25), double),
    ]
    for optimizer, copy in zip(optimizers, recreated(*optimizers), strict=True):
        assert getattr(copy, "options", None) == getattr(optimizer, "options", None)


def test_arguments_are_checked_and_have_the_defaults_of_the_original():
    state = GradientAccumulationOptimizer.bool_to_three_state
    assert [state(True, "x"), state(False, "x"), state(None, "x")] == ["THREESTATE_ON", "THREESTATE_OFF", "x"]
    sgd = keras.optimizers.SGD()
    options = GradientAccumulationOptimizer(sgd, 2).options
    assert options.reduction_method is GradientAccumulationReductionMethod.SUM
    assert (options.offload_weight_update_variables, options.dtype) == (None, None)
    with pytest.raises(ValueError, match="`num_mini_batches` must be a positive number, at least 1, but is 0"):
        GradientAccumulationOptimizer(sgd, 0)
    with pytest.raises(ValueError, match="`offload_weight_update_variables`, which is None: make it True"):
        GradientAccumulationOptimizer(sgd, 2, replicated_optimizer_state_sharding=True)
    with pytest.raises(TypeError, match="`gradient_mapping_function` must be a function, but is 3"):
        MapGradientOptimizer(sgd, 3)
    for kind in (CrossReplicaOptimizer, lambda opt: GradientAccumulationOptimizer(opt, 2)):
        with pytest.raises(ValueError, match=r"`opt` must be a `keras.optimizers.Optimizer`"):
            kind(tf.compat.v1.train.GradientDescentOptimizer(0.1))


@pytest.mark.parametrize(("iterations", "message"), [(3, "loop of 3 iterations, which is no"), (0, "not inside a")])
def test_left_over_gradients_are_refused(strategy, iterations, message):
    with strategy.scope():
        variable = keras.Variable(1.0)
        optimizer = GradientAccumulationOptimizer(keras.optimizers.SGD(0.5), 2)

    def step():
        optimizer.apply_gradients([(tf.constant(1.0), variable)])

    @tf.function(jit_compile=True)
    def program():
        if iterations:
            ipu.loops.repeat(iterations, step)
        else:
            step()

    with pytest.raises(tf.errors.FailedPreconditionError, match=f"`GradientAccumulationOptimizer`.*{message}"):
        strategy.run(program)


def test_gradients_and_variables_must_match():
    variable = keras.Variable(1.0)
    optimizer = CrossReplicaOptimizer(keras.optimizers.SGD())
    with pytest.raises(ValueError, match="`trainable_variables` must be set"):
        optimizer.apply([tf.constant(1.0)])
    optimizer.build([variable])
    with pytest.raises(ValueError, match="`grads` must hold a gradient for each of 1 variables, but has 2"):
        optimizer.apply([tf.constant(1.0)] * 2)
    with pytest.raises(ValueError, match="Unknown variable"):
        optimizer.apply([tf.constant(1.0)], [keras.Variable(1.0)])
