"""Phases: what is on the chip when, and what is refused."""

from __future__ import annotations

import pytest

from tensorflow_ipu.pipelining import (
    Load,
    Plan,
    Save,
    StageCost,
    parallel_phases_plan,
    plan_cost,
    serial_phases_plan,
    sharded_plan,
)

COST = StageCost(forward=1, backward=2, update=0, load=1, save=1, activation_bytes=100, weight_bytes=10)


def transfers(plan: Plan) -> list[str]:
    """All loads and saves of a plan, in their order."""
    return [
        str(task.instruction)
        for _, _, step in plan.walk()
        for task in step.tasks
        if isinstance(task.instruction, Load | Save)
    ]


def test_a_phase_that_follows_itself_stays_on_the_chip():
    assert transfers(serial_phases_plan([0])) == ["0LF0", "0SU"]
    named = transfers(serial_phases_plan([0, 0]))
    assert named == ["0LF0", "0SF0", "1LF0", "1SB0", "0LB0", "0SU", "1LU", "1SU"]


def test_inference_saves_nothing():
    for plan in (serial_phases_plan([0] * 3, training=False), parallel_phases_plan([0, 1, 0], training=False)):
        assert transfers(plan) == ["0LF0", "1LF0", "2LF0"]


def test_parallel_phases_transfer_while_the_other_group_works():
    serial = plan_cost(serial_phases_plan([0] * 6, training=False, micro_batches=4), COST)
    parallel = plan_cost(parallel_phases_plan([0, 1] * 3, training=False, micro_batches=4), COST)
    assert serial.time == 4 * 6 * 2
    assert parallel.time == 4 * 6 * 1 + 1  # The first load has nothing to hide behind.


def test_one_phase_at_a_time_is_on_the_chip_and_the_rest_off_it():
    serial = plan_cost(serial_phases_plan([0] * 3), COST).ipus[0]
    # Weights and gradients, and the activations of one phase.
    assert (serial.weight_bytes, serial.stash_bytes) == (20, 100)
    # Of each phase weights and gradients; the last one's activations never leave the chip.
    assert serial.off_chip_bytes == 3 * 20 + 2 * 100
    shards = plan_cost(sharded_plan([0] * 3), COST).ipus[0]
    assert (shards.weight_bytes, shards.stash_bytes, shards.off_chip_bytes) == (60, 300, 0)


@pytest.mark.parametrize("make", [serial_phases_plan, parallel_phases_plan])
def test_more_micro_batches_repeat_the_same_loop(make):
    mapping = [0, 0, 0] if make is serial_phases_plan else [0, 1, 0]
    few, many = make(mapping, micro_batches=2), make(mapping, micro_batches=1000)
    assert many == few.with_micro_batches(1000)


@pytest.mark.parametrize(
    ("make", "arguments", "kind", "words"),
    [
        (serial_phases_plan, {"device_mapping": []}, ValueError, "is empty"),
        (serial_phases_plan, {"device_mapping": 0}, TypeError, "must be a list or a tuple"),
        (serial_phases_plan, {"device_mapping": [[0, 1], [1, 2]]}, ValueError, "share one group of IPUs"),
        (parallel_phases_plan, {"device_mapping": [0, 0]}, ValueError, "IPU 0 to the phases 0 and 1"),
        (parallel_phases_plan, {"device_mapping": [0, 1, 2]}, ValueError, "every second phase shares"),
        (parallel_phases_plan, {"device_mapping": [0, 1], "micro_batches": 0}, ValueError, "`micro_batches` must"),
        (parallel_phases_plan, {"device_mapping": [0, 1], "training": None}, TypeError, "`training` must be"),
    ],
)
def test_bad_phases_are_refused(make, arguments, kind, words):
    with pytest.raises(kind, match=words):
        make(**arguments)
