"""Phases: what is on the chip when, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tensorflow_ipu.machine import system_of
from tensorflow_ipu.pipelining import (
    Liveness,
    Load,
    PlanError,
    Save,
    StageCost,
    Step,
    check_plan,
    parallel_phases_plan,
    plan_cost,
    serial_phases_plan,
    sharded_plan,
)

COST = StageCost(forward=1, backward=2, update=0, load=1, save=1, activation_bytes=100, weight_bytes=10)


def transfers(plan):
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


ALWAYS, AFTER_FORWARD, EACH = Liveness


def test_phases_that_are_always_live_are_a_model_in_shards():
    plan = serial_phases_plan([0] * 3, liveness=ALWAYS)
    assert transfers(plan) == []
    assert "always live" in str(plan)
    check_plan(plan)
    found, shards = (plan_cost(each, COST).ipus[0] for each in (plan, sharded_plan([0] * 3)))
    assert (found.weight_bytes, found.stash_bytes) == (shards.weight_bytes, shards.stash_bytes) == (60, 300)
    assert found.off_chip_bytes == 0


def test_phases_off_the_chip_after_forward_come_back_for_backward_and_stay():
    plan = serial_phases_plan([0] * 3, micro_batches=2, liveness=AFTER_FORWARD)
    assert transfers(plan) == [f"{each}{batch}" for batch in range(2) for each in ("0SF", "1SF", "1LB", "0LB")]
    check_plan(plan)
    found = plan_cost(plan, COST).ipus[0]
    # At the end weights and gradients of all; of activations those of one phase at a time.
    assert (found.weight_bytes, found.stash_bytes) == (60, 100)
    assert found.off_chip_bytes == 2 * (20 + 100)  # The last phase never leaves.


@pytest.mark.parametrize(("make", "mapping"), [(serial_phases_plan, [0] * 4), (parallel_phases_plan, [0, 1, 0, 1])])
def test_the_longer_phases_stay_the_more_is_on_the_chip_and_the_less_is_moved(make, mapping):
    cost = StageCost(1e-3, activation_bytes=4e6, weight_bytes=2e6, state_bytes=1e6)
    plans = [make(mapping, micro_batches=3, liveness=liveness) for liveness in (ALWAYS, AFTER_FORWARD, EACH)]
    costs = [plan_cost(plan, cost, machine="GC200") for plan in plans]
    assert costs[0].transfer_share == 0
    assert costs[0].time < costs[1].time < costs[2].time
    assert costs[0].peak_bytes > costs[1].peak_bytes > costs[2].peak_bytes
    for plan in plans:
        check_plan(plan)
        assert plan.phased
    rate = system_of("GC200").streaming_bytes_per_second
    if make is serial_phases_plan:  # Three phases, each micro-batch: activations and sums away, and back with weights.
        moved = 3 * 3 * (2 * (4e6 + 2e6) + 2e6)
        assert costs[1].transfer_share == pytest.approx(moved / rate / costs[1].time)


def test_in_inference_phases_leave_after_forward_or_never():
    each, forward, always = (
        serial_phases_plan([0] * 3, training=False, liveness=one) for one in (EACH, AFTER_FORWARD, ALWAYS)
    )
    assert transfers(each) == transfers(forward) == ["0LF0", "1LF0", "2LF0"]
    assert transfers(always) == []
    assert [plan_cost(plan, COST).ipus[0].weight_bytes for plan in (each, forward, always)] == [10, 10, 30]


def test_what_is_no_liveness_is_refused():
    with pytest.raises(TypeError, match="`liveness` must be a `Liveness`, but is 'always'"):
        serial_phases_plan([0, 0], liveness="always")


def test_a_phase_that_does_not_come_back_is_found():
    plan = serial_phases_plan([0] * 3, liveness=AFTER_FORWARD)
    steady = plan.section("steady")
    steps = (tuple(task for task in step.tasks if str(task.instruction) != "1LB0") for step in steady.steps)
    without = replace(steady, steps=tuple(map(Step, steps)))
    sections = tuple(without if each is steady else each for each in plan.sections)
    with pytest.raises(PlanError, match="`1B0`: its stage is not on the chip; load it before"):
        check_plan(replace(plan, sections=sections))
