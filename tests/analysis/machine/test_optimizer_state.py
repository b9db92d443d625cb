"""Slots and accumulators of optimizers in reports, separate from weights, and the time of slots off the chip."""

import keras
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.machine import Kept, systems

WIDTH = 64
WEIGHTS = 4 * WIDTH * WIDTH
RATE = systems()["IPU-M2000"].streaming_bytes_per_second


def train(strategy, make_optimizer):
    """Returns a program of 12 steps that updates a weight. Two functions are between the program and its optimizer."""
    with strategy.scope():
        weights = tf.Variable(tf.eye(WIDTH))
        optimizer = make_optimizer(weights)
    infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors(tf.ones([8, WIDTH])).repeat())

    def update(gradient):
        optimizer.apply_gradients([(gradient, weights)])

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(x @ weights))
        update(tape.gradient(loss, weights))

    @tf.function
    def program():
        ipu.loops.repeat(12, step, infeed_queue=infeed)

    return program


def adam(weights):
    optimizer = keras.optimizers.Adam()
    optimizer.build([weights])
    return optimizer


def test_the_state_of_an_optimizer_that_a_program_names_is_told_apart(strategy):
    memory = strategy.report(train(strategy, adam)).memory
    assert memory.optimizer == pytest.approx(2 * WEIGHTS, abs=32)  # Two moments, a rate and a count.
    assert memory.variables == pytest.approx(WEIGHTS, abs=128)  # With the state variables of queues.
    assert memory.feeds == 8 * WIDTH * 4
    assert memory.off_chip == 0


def test_state_off_the_chip_comes_and_goes_with_each_update_and_replicas_share_it(strategy, configure):
    configure(2)
    slots = tf.compat.v1.train

    def offloading(_):
        return ipu.optimizers.GradientAccumulationOptimizerV2(
            slots.MomentumOptimizer(0.1, 0.9),
            num_mini_batches=4,
            offload_weight_update_variables=True,
            replicated_optimizer_state_sharding=True,
        )

    report = strategy.report(train(strategy, offloading), machine="IPU-M2000")
    assert report.memory.optimizer == 0
    assert report.memory.off_chip == WEIGHTS / 2
    assert report.memory.accumulators == WEIGHTS
    assert report.memory.variables == pytest.approx(WEIGHTS, abs=128)
    (row,) = [row for row in report.operations if row.kind == "streaming"]
    assert row.count == 3
    assert row.links == pytest.approx(3 * 2 * (WEIGHTS / 2) / RATE)


def test_options_of_accumulation_place_what_a_keras_model_keeps(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input([WIDTH]), keras.layers.Dense(WIDTH, use_bias=False)])
        model.compile("adam", "mse", steps_per_execution=8)
    model.set_gradient_accumulation_options(
        gradient_accumulation_steps_per_replica=4, offload_weight_update_variables=True, dtype=tf.float16
    )
    report = model.ipu_report(8)
    assert report.memory.accumulators == WEIGHTS / 2
    assert [report.memory.optimizer, report.memory.off_chip] == pytest.approx([0, 2 * WEIGHTS], abs=32)
    assert sum(row.count for row in report.operations if row.kind == "streaming") == 2


def test_a_caller_that_knows_what_is_kept_says_so(strategy):
    program = train(strategy, adam)
    report = strategy.report(program, kept=Kept(state=WEIGHTS, off_chip=WEIGHTS, steps_per_update=3))
    assert (report.memory.optimizer, report.memory.off_chip) == (0, WEIGHTS)
    assert sum(row.count for row in report.operations if row.kind == "streaming") == 4
