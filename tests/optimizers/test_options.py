"""The arguments of the accumulating optimizers: what they record, and what they refuse."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod

SGD = tf.compat.v1.train.GradientDescentOptimizer
KINDS = [
    ipu.optimizers.GradientAccumulationOptimizerV2,
    ipu.optimizers.CrossReplicaGradientAccumulationOptimizerV2,
]
OLD_KINDS = [
    ipu.optimizers.GradientAccumulationOptimizer,
    ipu.optimizers.CrossReplicaGradientAccumulationOptimizer,
]


@pytest.mark.parametrize("kind", KINDS)
def test_arguments_have_the_names_the_order_and_the_defaults_of_the_original(kind):
    names = [(parameter.name, parameter.default) for parameter in list(inspect.signature(kind).parameters.values())[2:]]
    assert names == [
        ("offload_weight_update_variables", None),
        ("replicated_optimizer_state_sharding", False),
        ("dtype", None),
        ("reduction_method", GradientAccumulationReductionMethod.SUM),
        ("name", kind.__name__),
    ]


@pytest.mark.parametrize("kind", OLD_KINDS)
def test_the_earlier_kinds_take_what_the_original_took(kind):
    parameters = inspect.signature(kind).parameters
    assert list(parameters) == ["opt", "num_mini_batches", "verify_usage", "name"]
    assert parameters["verify_usage"].default is True
    with pytest.raises(TypeError, match="`verify_usage` must be True or False, but is 1"):
        kind(SGD(0.1), 2, verify_usage=1)


@pytest.mark.parametrize("kind", KINDS)
def test_options_are_recorded(kind):
    options = kind(SGD(0.1), 4, True, True, tf.float16, "Running_Mean").options
    assert options.num_mini_batches == 4
    assert options.offload_weight_update_variables is True
    assert options.replicated_optimizer_state_sharding is True
    assert options.dtype == tf.float16
    assert options.reduction_method is GradientAccumulationReductionMethod.RUNNING_MEAN


@pytest.mark.parametrize("kind", KINDS + OLD_KINDS)
def test_a_number_below_one_and_a_keras_optimizer_are_refused(kind):
    with pytest.raises(ValueError, match="`num_mini_batches` must be a positive number, at least 1, but is -3"):
        kind(SGD(0.1), -3)
    with pytest.raises(ValueError, match=r"`opt` must be a `tf.compat.v1.train.Optimizer`"):
        kind(tf.keras.optimizers.SGD(0.1), 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("offload", [None, False])
def test_state_that_is_not_offloaded_cannot_be_sharded(kind, offload):
    with pytest.raises(ValueError, match=f"`offload_weight_update_variables` is {offload}: make it True"):
        kind(SGD(0.1), 2, offload, True)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
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
    ],
)
def test_a_bad_argument_is_named(arguments, kind, message):
    with pytest.raises(kind, match=message):
        KINDS[0](**{"opt": SGD(0.1), "num_mini_batches": 2, **arguments})


@pytest.mark.parametrize("dtype", ["float16", np.float16, np.dtype("float16"), tf.float16])
def test_a_type_may_be_named_in_all_ways_that_tensorflow_knows(dtype):
    options = KINDS[0](SGD(0.1), 2, dtype=dtype).options
    assert options.accumulator_dtype(tf.Variable(1.0)) == tf.float16
    options = KINDS[0](SGD(0.1), 2, dtype=lambda variable: "int8").options
    with pytest.raises(TypeError, match="`dtype` must return a floating-point type, but returned 'int8'"):
        options.accumulator_dtype(tf.Variable(1.0))
