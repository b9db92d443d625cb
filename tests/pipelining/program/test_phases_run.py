"""Stages as phases and as shards have the same results as the model in one piece, and run the expected plan."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import pipelining
from tensorflow_ipu.pipelining import Liveness, PhasedExecution, PipelineSchedule, check_plan, last_pipeline

SERIAL, PARALLEL = PhasedExecution


def momentum():
    return tf.keras.optimizers.SGD(0.05, momentum=0.9)


@pytest.mark.parametrize(
    ("execution", "ipus", "liveness"),
    [(SERIAL, 1, Liveness.OffChipAfterEachPhase), (PARALLEL, 2, Liveness.OffChipAfterFwd)],
)
def test_phases_train_as_accumulation_does(toy, configure, strategy, execution, ipus, liveness):
    configure(ipus)
    options = {"pipeline_schedule": execution, "phase_liveness": None if execution is SERIAL else liveness}
    weights, losses = toy.pipelined(strategy, momentum, 5, repeat_count=2, **options)
    expected, expected_losses = toy.accumulated(momentum, 5, 2)
    toy.assert_close(weights, expected)
    np.testing.assert_allclose(losses, expected_losses, rtol=2e-5)
    plan = last_pipeline().plan
    make = pipelining.serial_phases_plan if execution is SERIAL else pipelining.parallel_phases_plan
    mapping = [phase % ipus for phase in range(3)]
    assert plan == make(mapping, micro_batches=5, repeat_count=2, liveness=liveness)
    check_plan(plan)
    if execution is SERIAL:
        stages: Any = last_pipeline().stage_costs  # No stage has several parts.
        shards = pipelining.pipeline_plan(3, 5, PipelineSchedule.Sequential, device_mapping=[0] * 3)
        (phased,), (sharded,) = (pipelining.plan_cost(candidate, stages).ipus for candidate in (plan, shards))
        # The weights, the accumulators, and the activations that wait for a backward phase.
        waiting = sum(stage.activation_bytes for stage in stages[:-1])
        assert phased.off_chip_bytes == sum(2 * stage.weight_bytes for stage in stages) + waiting
        assert sharded.off_chip_bytes == 0
        on_chip = max(2 * stage.weight_bytes for stage in stages) + max(stage.activation_bytes for stage in stages)
        assert phased.stash_bytes + phased.weight_bytes == on_chip < sharded.stash_bytes + sharded.weight_bytes


@pytest.mark.parametrize("execution", PhasedExecution)
def test_phases_infer_as_the_model_does(run, configure, strategy, execution):
    """Runs four phases of two parts each, on one group of two IPUs or on two groups."""
    configure(2 if execution is SERIAL else 4)
    with strategy.scope():
        factor = tf.Variable(3.0)
    stages = [
        [lambda x: x + 1.0, lambda x: x * factor],
        [lambda a, b: a * b, lambda a, b: a - b],
        [lambda a, b: (a, b), lambda a, b: a + b],
        [lambda a, b, c: a - b, lambda a, b, c: c],
    ]
    dataset = tf.data.Dataset.from_tensor_slices(np.arange(3, dtype=np.float32))
    results = run(dataset, stages, 3, pipeline_schedule=execution)
    x = np.arange(3)
    a, b = (x + 1) * (3 * x), (x + 1) - 3 * x
    np.testing.assert_allclose(results, [a - b, a + b])
    plan = last_pipeline().plan
    check_plan(plan)
    assert plan.name == execution.value
    assert plan.mapping == (((0, 1),) * 4 if execution is SERIAL else ((0, 2), (1, 3)) * 2)


def test_the_number_of_micro_batches_of_phases_may_be_known_at_run_time_only(configure, strategy):
    configure(1)
    with strategy.scope():
        outfeed = ipu.IPUOutfeedQueue()

        @tf.function(jit_compile=True)
        def program(count):
            pipelining.pipeline(
                [lambda x: x + 1.0, lambda x: 2.0 * x],
                gradient_accumulation_count=count,
                inputs=[1.0],
                outfeed_queue=outfeed,
                pipeline_schedule=SERIAL,
            )

        for count in (1, 4):
            strategy.run(program, args=(tf.constant(count),))
            np.testing.assert_allclose(outfeed.dequeue(), [4.0] * count)


def test_a_model_in_shards_by_scopes_trains_as_in_one_piece(toy, configure, strategy):
    configure(2)
    xs, ys = toy.batches(2)
    with strategy.scope():
        variables = [tf.Variable(value) for value in toy.weights(2)]
        optimizer = momentum()
        optimizer.build(variables)

        @tf.function(jit_compile=True)
        def step(x, y):
            with tf.GradientTape() as tape:
                for shard in range(2):
                    with ipu.scopes.ipu_shard(shard):
                        x = toy.layer(x, variables, shard)
                loss = toy.loss_of(x, y)
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        for x, y in zip(xs, ys, strict=True):
            strategy.run(step, args=(tf.constant(x), tf.constant(y)))
        sharded = [variable.numpy() for variable in variables]
    toy.assert_close(sharded, toy.accumulated(momentum, 1, 2, stages=2)[0])
