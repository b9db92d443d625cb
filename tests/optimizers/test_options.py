"""The arguments of accumulating optimizers, the memory that they need, and wrappers compared with plain TensorFlow."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.keras.optimizers import GradientAccumulationOptimizer
from tensorflow_ipu.optimizers import (
    CrossReplicaOptimizer,
    GradientAccumulationOptimizerV2,
    GradientAccumulationReductionMethod,
    IpuOptimizer,
    MapGradientOptimizer,
    update_memory,
)

SGD = tf.compat.v1.train.GradientDescentOptimizer
KINDS = [ipu.optimizers.GradientAccumulationOptimizerV2, ipu.optimizers.CrossReplicaGradientAccumulationOptimizerV2]
OLD_KINDS = [ipu.optimizers.GradientAccumulationOptimizer, ipu.optimizers.CrossReplicaGradientAccumulationOptimizer]


def test_the_earlier_kinds_take_what_the_original_took(refused):
    for kind in OLD_KINDS:
        parameters = inspect.signature(kind).parameters
        assert list(parameters) == ["opt", "num_mini_batches", "verify_usage", "name"]
        assert parameters["verify_usage"].default is True
        refused(TypeError, "`verify_usage` must be True or False, but is 1", kind, SGD(0.1), 2, verify_usage=1)


@pytest.mark.parametrize("kind", KINDS)
def test_arguments_have_the_names_the_order_and_the_defaults_of_the_original_and_are_recorded(kind):
    names = [(parameter.name, parameter.default) for parameter in list(inspect.signature(kind).parameters.values())[2:]]
    assert names == [
        ("offload_weight_update_variables", None),
        ("replicated_optimizer_state_sharding", False),
        ("dtype", None),
        ("reduction_method", GradientAccumulationReductionMethod.SUM),
        ("name", kind.__name__),
    ]
    options = kind(SGD(0.1), 4, True, True, tf.float16, "Running_Mean").options
    assert (options.num_mini_batches, options.dtype) == (4, tf.float16)
    assert options.offload_weight_update_variables is True
    assert options.replicated_optimizer_state_sharding is True
    assert options.reduction_method is GradientAccumulationReductionMethod.RUNNING_MEAN
    for offload in (None, False):
        with pytest.raises(ValueError, match=f"`offload_weight_update_variables`, which is {offload}: make it True"):
            kind(SGD(0.1), 2, offload, True)


def test_a_bad_argument_is_named(refused):
    for kind in KINDS + OLD_KINDS:
        refused(ValueError, "`num_mini_batches` must be a positive number, at least 1, but is -3", kind, SGD(0.1), -3)
        refused(ValueError, r"`opt` must be a `tf.compat.v1.train.Optimizer`", kind, keras.optimizers.SGD(0.1), 2)
    for arguments, kind, message in (
        ({"num_mini_batches": 2.0}, TypeError, "`num_mini_batches` must be an int, but is 2.0"),
        ({"num_mini_batches": True}, TypeError, "`num_mini_batches` must be an int, but is True"),
        ({"offload_weight_update_variables": 1}, TypeError, "must be True, False or None, but is 1"),
        ({"replicated_optimizer_state_sharding": None}, TypeError, "must be True or False, but is None"),
        ({"dtype": tf.int32}, TypeError, "`dtype` must be a floating-point type"),
        ({"dtype": 3.5}, TypeError, "`dtype` must be a floating-point type"),
        ({"reduction_method": "median"}, ValueError, "Valid values are: SUM, MEAN, RUNNING_MEAN"),
        ({"num_mini_batches": 2**31}, ValueError, "`num_mini_batches` must be at most 2147483647, but is 2147483648"),
        (
            {"num_mini_batches": 0, "replicated_optimizer_state_sharding": True, "reduction_method": "median"},
            ValueError,
            "(?s)3 faults.*num_mini_batches.*replicated_optimizer.*Valid values",
        ),
    ):
        refused(kind, message, KINDS[0], **{"opt": SGD(0.1), "num_mini_batches": 2, **arguments})


def test_a_type_may_be_named_in_all_ways_that_tensorflow_knows(refused):
    for dtype in ("float16", np.float16, np.dtype("float16"), tf.float16):
        assert KINDS[0](SGD(0.1), 2, dtype=dtype).options.accumulator_dtype(tf.Variable(1.0)) == tf.float16
    options = KINDS[0](SGD(0.1), 2, dtype=lambda variable: "int8").options
    words = "`dtype` must return a floating-point type, but returned 'int8'"
    refused(TypeError, words, options.accumulator_dtype, tf.Variable(1.0))


Momentum = tf.compat.v1.train.MomentumOptimizer


def trained(optimizer_of, steps=3):
    """Returns the weights after some steps on a quadratic function, on the IPU."""
    strategy = ipu.IPUStrategy()
    with strategy.scope():
        weights = tf.Variable([1.0, -2.0, 3.0])
        unused = tf.Variable(1.0)
        optimizer = optimizer_of()

    @tf.function(jit_compile=True)
    def step():
        pairs = optimizer.compute_gradients(lambda: tf.reduce_sum(weights**2), [weights, unused])
        optimizer.apply_gradients(pairs)

    for _ in range(steps):
        strategy.run(step)
    return weights.numpy()


def test_the_mapping_function_gets_gradient_and_value_and_a_wrapper_without_a_change_does_as_the_wrapped_optimizer():
    weights = np.array([1.0, -2.0, 3.0], np.float32)
    for _ in range(3):
        weights = weights - np.float32(0.1) * (2 * weights + np.float32(0.5) * weights)
    mapped = trained(lambda: MapGradientOptimizer(SGD(0.1), lambda g, v: g + 0.5 * v))
    np.testing.assert_allclose(mapped, weights, rtol=1e-5)
    wrapped, plain = trained(lambda: IpuOptimizer(Momentum(0.1, 0.9))), trained(lambda: Momentum(0.1, 0.9))
    np.testing.assert_array_equal(wrapped, plain)


def test_slots_names_and_variables_are_those_of_the_wrapped_optimizer():
    inner = Momentum(0.1, 0.9)
    outer = MapGradientOptimizer(IpuOptimizer(inner), lambda g, _: g)
    variable = tf.Variable([1.0])
    outer.apply_gradients([(tf.constant([1.0]), variable)])
    assert outer.get_slot_names() == ["momentum"]
    assert outer.get_slot(variable, "momentum") is inner.get_slot(variable, "momentum")
    assert outer.get_name() == inner.get_name()
    assert [v.name for v in outer.variables()] == [v.name for v in inner.variables()]


def test_a_reduction_is_parsed_from_itself_and_from_its_name_in_any_case(refused):
    for value in ("sum", "SUM", "Sum", GradientAccumulationReductionMethod.SUM):
        assert GradientAccumulationReductionMethod.parse(value) is GradientAccumulationReductionMethod.SUM
    for value in ("average", 0, None):
        refused(ValueError, "Valid values are: SUM, MEAN, RUNNING", GradientAccumulationReductionMethod.parse, value)
    words = "`gradient_mapping_function` must be a function, but is 3"
    refused(TypeError, words, MapGradientOptimizer, Momentum(0.1, 0.9), 3)


OFFLOADED = {"offload_weight_update_variables": True}
SHARDED = {**OFFLOADED, "replicated_optimizer_state_sharding": True}


def adam_on_101_weights(**options):
    """Returns an optimizer that has created its slots, and the list of its variables."""
    strategy = ipu.IPUStrategy()
    with strategy.scope():
        weight = tf.Variable(tf.zeros([101]))
        adam = tf.compat.v1.train.AdamOptimizer(0.1)
        optimizer = GradientAccumulationOptimizerV2(CrossReplicaOptimizer(adam), 2, **options)

        @tf.function(jit_compile=True)
        def program():
            for _ in tf.range(2):
                optimizer.apply_gradients([(tf.ones([101]), weight)])

        strategy.run(program)
    return optimizer, [weight]


# Adam has two moments for each weight, and two scalars, which are too small to be stored off the chip.
def test_state_is_where_the_options_say_and_accumulators_count_in_their_own_type():
    for options, state_on_chip, state_off_chip in (
        ({"offload_weight_update_variables": False}, 816, 0),
        (OFFLOADED, 8, 808),
        (SHARDED, 8, 2 * 26 * 4),
    ):
        optimizer, weights = adam_on_101_weights(**options)
        memory = update_memory(optimizer, weights, replicas=4)
        assert (memory.weights, memory.accumulators) == (404, 404)
        assert (memory.state_on_chip, memory.state_off_chip) == (state_on_chip, state_off_chip)
        assert memory.on_chip == 808 + state_on_chip
        assert update_memory(optimizer, weights, minimum_remote_tensor_size=500).state_off_chip == 0
    half = GradientAccumulationOptimizerV2(tf.compat.v1.train.GradientDescentOptimizer(0.1), 2, dtype=tf.float16)
    assert update_memory(half, weights).accumulators == 202


def test_optimizers_of_keras_count_without_the_variables_of_their_wrappers():
    with ipu.IPUStrategy().scope():
        weight = keras.Variable(keras.ops.zeros([100]))
        inner = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer = GradientAccumulationOptimizer(inner, 2, **SHARDED)
        optimizer.build([weight])
    memory = update_memory(optimizer, [weight], replicas=8)
    scalars = sum(variable.value.dtype.size for variable in inner.variables if variable.shape == ())
    assert (memory.state_on_chip, memory.state_off_chip) == (scalars, 13 * 4)
    assert memory.accumulators == 400
    assert update_memory(inner, [weight]).accumulators == 0


def test_number_of_replicas_and_optimizer_are_checked(refused):
    for replicas in (0, -1, 1.0, True):
        refused(ValueError, "`replicas`", update_memory, keras.optimizers.SGD(0.1), [], replicas)
    refused(TypeError, "`optimizer`", update_memory, object(), [])
