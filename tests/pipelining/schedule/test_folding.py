"""Ramps are iterations of the steady loop in which what has no micro-batch is skipped, or are found not to be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tensorflow_ipu.pipelining import PipelineSchedule, RecomputationMode, overlap_length, pipeline_plan
from tensorflow_ipu.pipelining.schedule.order import folded_ramps

GROUPED, INTERLEAVED, SEQUENTIAL = PipelineSchedule


@pytest.mark.parametrize("mode", [None, RecomputationMode.Auto])
@pytest.mark.parametrize("schedule", PipelineSchedule)
@pytest.mark.parametrize("mapping", [[0, 1], [2, 0, 1], [0, [1, 2], 3], [0, 1, 2, 3, 4]])
def test_all_ramps_of_training_are_iterations_of_the_loop(schedule, mode, mapping):
    count = 2 * overlap_length(schedule, mapping, training=True)
    plan = pipeline_plan(len(mapping), count, schedule, device_mapping=mapping, recomputation_mode=mode)
    ramps = folded_ramps(plan)
    assert ramps is not None
    steps = len(plan.section("steady").steps)
    assert ramps[0] * steps == len(plan.section("ramp up").steps)
    assert 0 <= ramps[1] * steps - len(plan.section("ramp down").steps) < steps


def uneven():
    """A plan in which micro-batches set out at uneven times."""
    return pipeline_plan(4, 4, INTERLEAVED, device_mapping=[0, 1, 0, 1], training=False)


def test_other_ramps_are_found_not_to_be():
    assert folded_ramps(uneven()) is None


def test_a_ramp_that_does_something_else_is_noticed():
    plan = pipeline_plan(3, 12)
    up, *others = plan.sections
    assert folded_ramps(replace(plan, sections=(replace(up, steps=up.steps[::-1]), *others))) is None
