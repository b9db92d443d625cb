"""What a machine would keep for updates, and where, by the options of the optimizer."""

import keras
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.keras.optimizers import GradientAccumulationOptimizer
from tensorflow_ipu.optimizers import CrossReplicaOptimizer, GradientAccumulationOptimizerV2, update_memory

OFFLOADED = {"offload_weight_update_variables": True}
SHARDED = {**OFFLOADED, "replicated_optimizer_state_sharding": True}


def adam_on_101_weights(**options):
    """An optimizer that has made its state, and its variable."""
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


# Adam has two moments a weight, and two scalars, which are too small to go off the chip.
@pytest.mark.parametrize(
    ("options", "state_on_chip", "state_off_chip"),
    [({"offload_weight_update_variables": False}, 816, 0), (OFFLOADED, 8, 808), (SHARDED, 8, 2 * 26 * 4)],
)
def test_state_is_where_the_options_say(options, state_on_chip, state_off_chip):
    memory = update_memory(*adam_on_101_weights(**options), replicas=4)
    assert (memory.weights, memory.accumulators) == (404, 404)
    assert (memory.state_on_chip, memory.state_off_chip) == (state_on_chip, state_off_chip)
    assert memory.on_chip == 808 + state_on_chip


def test_accumulators_count_in_their_own_type_and_small_tensors_stay_on_the_chip():
    optimizer, weights = adam_on_101_weights(**OFFLOADED)
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


@pytest.mark.parametrize("replicas", [0, -1, 1.0, True])
def test_number_of_replicas_and_optimizer_are_checked(replicas, refused):
    refused(ValueError, "`replicas`", update_memory, keras.optimizers.SGD(0.1), [], replicas)
    refused(TypeError, "`optimizer`", update_memory, object(), [])
