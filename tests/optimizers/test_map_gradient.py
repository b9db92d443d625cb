"""The optimizer wrappers against plain TensorFlow."""

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod, IpuOptimizer, MapGradientOptimizer

Momentum = tf.compat.v1.train.MomentumOptimizer


def trained(optimizer_of, steps=3):
    """The weights after some steps on a quadratic, on the IPU."""
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


def test_a_wrapper_without_a_change_trains_as_the_wrapped_optimizer_does():
    np.testing.assert_array_equal(
        trained(lambda: IpuOptimizer(Momentum(0.1, 0.9))), trained(lambda: Momentum(0.1, 0.9))
    )


def test_the_mapping_function_gets_gradient_and_value_and_its_result_is_applied():
    weights = np.array([1.0, -2.0, 3.0], np.float32)
    for _ in range(3):
        weights = weights - np.float32(0.1) * (2 * weights + np.float32(0.5) * weights)
    mapped = trained(
        lambda: MapGradientOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1), lambda g, v: g + 0.5 * v)
    )
    np.testing.assert_allclose(mapped, weights, rtol=1e-6)


def test_slots_names_and_variables_are_those_of_the_wrapped_optimizer():
    inner = Momentum(0.1, 0.9)
    outer = MapGradientOptimizer(IpuOptimizer(inner), lambda g, _: g)
    variable = tf.Variable([1.0])
    outer.apply_gradients([(tf.constant([1.0]), variable)])
    assert outer.get_slot_names() == ["momentum"]
    assert outer.get_slot(variable, "momentum") is inner.get_slot(variable, "momentum")
    assert outer.get_name() == inner.get_name()
    assert [v.name for v in outer.variables()] == [v.name for v in inner.variables()]


def test_a_mapping_that_is_no_function_is_refused():
    with pytest.raises(TypeError, match="`gradient_mapping_function` must be a function, but is 3"):
        MapGradientOptimizer(Momentum(0.1, 0.9), 3)


@pytest.mark.parametrize("value", ["sum", "SUM", "Sum", GradientAccumulationReductionMethod.SUM])
def test_a_reduction_is_parsed_from_itself_and_from_its_name_in_any_case(value):
    assert GradientAccumulationReductionMethod.parse(value) is GradientAccumulationReductionMethod.SUM


@pytest.mark.parametrize("value", ["average", 0, None])
def test_an_unknown_reduction_is_refused_with_the_known_ones(value):
    with pytest.raises(ValueError, match="Valid values are: SUM, MEAN, RUNNING_MEAN"):
        GradientAccumulationReductionMethod.parse(value)
