"""Whatever the schedule, the recomputation and the optimizer: a pipeline trains as gradient accumulation does."""

from __future__ import annotations

from typing import Any

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

import tensorflow_ipu as ipu
from tensorflow_ipu import pipelining
from tensorflow_ipu.pipelining import (
    OptimizerFunctionOutput,
    PipelineSchedule,
    RecomputationMode,
    check_plan,
    last_pipeline,
    overlap_length,
)

GROUPED, INTERLEAVED, SEQUENTIAL = PipelineSchedule
THEN, WITHIN = RecomputationMode.RecomputeThenBackpropagate, RecomputationMode.RecomputeAndBackpropagateInterleaved

WAYS = [
    (GROUPED, None),
    (GROUPED, THEN),
    (GROUPED, WITHIN),
    (INTERLEAVED, None),
    (INTERLEAVED, THEN),
    (SEQUENTIAL, None),
    (SEQUENTIAL, WITHIN),
]


def momentum():
    return tf.keras.optimizers.SGD(0.05, momentum=0.9)


def adam():
    return tf.keras.optimizers.Adam(0.01)


def old_adam():
    return tf.compat.v1.train.AdamOptimizer(0.01)


def by_tape(opt, loss, variables):
    tape = tf.GradientTape(watch_accessed_variables=False)
    with tape:
        for variable in variables:
            tape.watch(variable)
    return OptimizerFunctionOutput(opt, loss, tape=tape)


@pytest.mark.parametrize(("schedule", "mode"), WAYS)
def test_each_schedule_and_recomputation_trains_as_accumulation_does(toy, strategy, schedule, mode):
    weights, losses = toy.pipelined(strategy, momentum, 6, pipeline_schedule=schedule, recomputation_mode=mode)
    expected, expected_losses = toy.accumulated(momentum, 6, 1)
    toy.assert_close(weights, expected)
    np.testing.assert_allclose(losses, expected_losses, rtol=2e-5)
    plan = last_pipeline().plan
    assert (plan.schedule, plan.recomputation, plan.micro_batches) == (schedule, mode, 6)
    check_plan(plan)


@pytest.mark.parametrize("schedule", [GROUPED, INTERLEAVED])
def test_a_steady_section_longer_than_its_ramps_trains_as_accumulation_does(toy, strategy, schedule):
    """In it, stages overlap: no ring of three stages may be written before it was read."""
    weights, losses = toy.pipelined(strategy, momentum, 18, pipeline_schedule=schedule, repeat_count=2)
    expected, expected_losses = toy.accumulated(momentum, 18, 2)
    toy.assert_close(weights, expected)
    np.testing.assert_allclose(losses, expected_losses, rtol=2e-5)
    assert last_pipeline().plan.repeat_count == 2


@pytest.mark.parametrize(("optimizer", "output"), [(adam, by_tape), (old_adam, None)])
def test_optimizers_train_as_they_do_elsewhere(toy, strategy, optimizer, output):
    toy.configure(2)
    weights, _ = toy.pipelined(strategy, optimizer, 4, stages=2, runs=2, output=output, pipeline_schedule=INTERLEAVED)
    expected, _ = toy.accumulated(optimizer, 4, 2, stages=2)
    toy.assert_close(weights, expected)


@pytest.mark.parametrize("method", ["MEAN", "running_mean"])
def test_means_of_gradients_are_those_of_all_micro_batches(toy, strategy, method):
    toy.configure(2)
    weights, _ = toy.pipelined(strategy, momentum, 4, stages=2, reduction_method=method)
    expected, _ = toy.accumulated(momentum, 4, 1, stages=2, mean=True)
    toy.assert_close(weights, expected)


def test_what_compute_gradients_does_is_done_to_each_micro_batch(toy, strategy):
    class Clipping(tf.compat.v1.train.GradientDescentOptimizer):
        def compute_gradients(self, loss, *args, **kwargs):
            pairs = super().compute_gradients(loss * 2.0, *args, **kwargs)
            return [(tf.clip_by_value(gradient, -0.05, 0.05), variable) for gradient, variable in pairs]

    toy.configure(2)
    found, _ = toy.pipelined(strategy, lambda: Clipping(0.1), 4, stages=2)
    steps = [a - b for a, b in zip(toy.weights(2), found, strict=True)]
    expected = _clipped_steps(toy, 4)
    assert max(np.abs(step).max() for step in expected) == pytest.approx(0.1 * 4 * 0.05), "some are clipped"
    toy.assert_close(steps, expected)


def _clipped_steps(toy, count):
    variables = [tf.Variable(value) for value in toy.weights(2)]
    total = [np.zeros(variable.shape, np.float32) for variable in variables]
    for batch, y in zip(*toy.batches(count), strict=True):
        with tf.GradientTape() as tape:
            x = batch
            for stage in range(2):
                x = toy.layer(x, variables, stage)
            loss = toy.loss_of(x, y)
        gradients: Any = tape.gradient(loss, variables)
        total = [a + np.clip(2 * b.numpy(), -0.05, 0.05) for a, b in zip(total, gradients, strict=True)]
    return [0.1 * each for each in total]


def test_a_count_that_is_known_at_run_time_only_is_kept_to(toy, strategy):
    with strategy.scope():
        variables = [tf.Variable(value) for value in toy.weights(3)]
        optimizer = momentum()
        optimizer.build(variables)
        infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(toy.batches(12)))
        outfeed = ipu.IPUOutfeedQueue()

        @tf.function(jit_compile=True)
        def program(count):
            pipelining.pipeline(
                toy.stages_of(variables),
                count,
                infeed_queue=infeed,
                outfeed_queue=outfeed,
                optimizer_function=lambda loss: OptimizerFunctionOutput(optimizer, loss),
                reduction_method="mean",
            )

        infeed.initializer  # noqa: B018  (The access starts it.)
        strategy.run(program, (tf.constant(12),))
        assert outfeed.dequeue()[0].shape == [12]
        found = [variable.numpy() for variable in variables]
        for wrong in (10, 0, -6):
            words = f"a Grouped pipeline of 3 stages that trains must be a multiple of 6 from 6 to .* but is {wrong}"
            with pytest.raises(tf.errors.FailedPreconditionError, match=words):
                strategy.run(program, (tf.constant(wrong),))
        toy.assert_close([variable.numpy() for variable in variables], found)
        # What the failed runs left in the memory of feeds' states is no feed's number.
        replies = ipu.IPUOutfeedQueue()

        @tf.function(jit_compile=True)
        def reply():
            replies.enqueue(1.0)

        strategy.run(reply)
        assert set(replies.dequeue().numpy().ravel()) == {1.0}
    expected, _ = toy.accumulated(momentum, 12, 1, mean=True)
    toy.assert_close(found, expected)


@hypothesis.settings(
    max_examples=2, deadline=None, derandomize=True, database=None, suppress_health_check=list(hypothesis.HealthCheck)
)
@hypothesis.given(st.data())
def test_any_small_pipeline_trains_as_accumulation_does(toy, data):
    stages = data.draw(st.integers(2, 3))
    schedule, mode = data.draw(st.sampled_from(WAYS))
    mapping = data.draw(st.permutations(range(stages)))
    count = data.draw(st.integers(1, 2)) * overlap_length(schedule, mapping, training=True)
    toy.configure(4 if stages > 2 else 2)
    weights, _ = toy.pipelined(
        ipu.IPUStrategy(),
        momentum,
        count,
        stages=stages,
        pipeline_schedule=schedule,
        recomputation_mode=mode,
        device_mapping=mapping,
    )
    expected, _ = toy.accumulated(momentum, count, 1, stages=stages)
    toy.assert_close(weights, expected)
