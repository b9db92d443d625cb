"""The starts of micro-batches, ramps that are iterations of the steady loop, and instructions as text."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorflow_ipu.pipelining import (
    Backward,
    Forward,
    Idle,
    Load,
    PipelineSchedule,
    RecomputationMode,
    Recompute,
    Save,
    Update,
    overlap_length,
    parse_instruction,
    pipeline_plan,
)
from tensorflow_ipu.pipelining.schedule.pipelined import order_of
from tensorflow_ipu.pipelining.schedule.plan import micro_batch_of, shifted, stage_letters

GROUPED, INTERLEAVED, SEQUENTIAL = PipelineSchedule


@pytest.mark.parametrize("stages", [2, 3, 4, 9])
def test_overlap_length_of_a_stage_an_ipu(stages):
    mapping = range(stages)
    assert overlap_length(GROUPED, mapping, training=False) == stages
    assert overlap_length(GROUPED, mapping, training=True) == 2 * stages
    assert overlap_length(INTERLEAVED, mapping, training=False) == stages
    assert overlap_length(INTERLEAVED, mapping, training=True) == stages
    assert overlap_length(SEQUENTIAL, mapping, training=True) == 1


@pytest.mark.parametrize(
    ("mapping", "offsets"),
    [
        ([0, 1, 1, 0], (0, 2)),
        ([0, 1, 2, 0, 0, 2, 1, 0], (0, 2)),
        ([0, 0, 0], (0,)),
        ([0, [1, 2], 3], (0, 1, 2)),
        ([0, [1, 2], 2, 3], (0, 2)),
    ],
)
def test_interleaved_inference_sets_out_where_rotations_share_no_ipu(mapping, offsets):
    groups = [[item] if isinstance(item, int) else item for item in mapping]
    order = order_of(INTERLEAVED, groups, training=False)
    assert order.offsets == offsets
    assert overlap_length(INTERLEAVED, mapping, training=False) == len(offsets)
    if len(groups) == 8:  # Offsets are uneven, so the period is the whole cycle.
        assert order.period == (8, 2)
    assert order_of(INTERLEAVED, [[0], [1], [2]], training=True).offsets == (0, 2, 4)


@pytest.mark.parametrize("mode", [None, RecomputationMode.Auto])
@pytest.mark.parametrize("schedule", PipelineSchedule)
@pytest.mark.parametrize("mapping", [[0, 1], [2, 0, 1], [0, [1, 2], 3], [0, 1, 2, 3, 4]])
def test_all_ramps_of_training_are_iterations_of_the_loop(schedule, mode, mapping):
    count = 2 * overlap_length(schedule, mapping, training=True)
    plan = pipeline_plan(len(mapping), count, schedule, device_mapping=mapping, recomputation_mode=mode)
    ramps = plan.folded_ramps()
    assert ramps is not None
    steps = len(plan.section("steady").steps)
    assert ramps[0] * steps == len(plan.section("ramp up").steps)
    assert 0 <= ramps[1] * steps - len(plan.section("ramp down").steps) < steps


def test_other_ramps_are_found_not_to_be():
    uneven = pipeline_plan(4, 4, INTERLEAVED, device_mapping=[0, 1, 0, 1], training=False)
    assert uneven.folded_ramps() is None
    plan = pipeline_plan(3, 12)
    ramp_up, *sections = plan.sections
    assert replace(plan, sections=(replace(ramp_up, steps=ramp_up.steps[::-1]), *sections)).folded_ramps() is None


_STAGES = st.integers(0, 500)
_PARTS = st.none() | st.integers(0, 9)
_PASSES = st.builds(
    lambda kind, stage, part, micro_batch: kind(stage, part, micro_batch),
    st.sampled_from((Forward, Backward, Recompute)),
    _STAGES,
    _PARTS,
    st.integers(0, 2**31),
)
_COMPUTATIONS = _PASSES | st.builds(Update, _STAGES, _PARTS)
INSTRUCTIONS = _COMPUTATIONS | st.builds(Load, _COMPUTATIONS) | st.builds(Save, _COMPUTATIONS)


@given(INSTRUCTIONS | st.just(Idle()))
def test_text_reads_back(instruction):
    assert parse_instruction(str(instruction)) == instruction


@pytest.mark.parametrize(
    ("text", "instruction"),
    [
        ("2F0", Forward(2, None, 0)),
        ("0B13", Backward(0, None, 13)),
        ("1.1R4", Recompute(1, 1, 4)),
        ("3U", Update(3)),
        ("1.0U", Update(1, 0)),
        ("2LB5", Load(Backward(2, None, 5))),
        ("2SF5", Save(Forward(2, None, 5))),
        ("0LU", Load(Update(0))),
        (".", Idle()),
    ],
)
def test_the_texts_of_the_documentation(text, instruction):
    assert str(instruction) == text
    assert parse_instruction(text) == instruction


@pytest.mark.parametrize("text", ["", "F0", "2", "2F", "2X0", "2F-1", "2U3", "2LS0", "-2F0", "2F0 ", "2.F0", ".."])
def test_other_text_is_refused_by_name(text):
    with pytest.raises(ValueError, match="`text` is") as refused:
        parse_instruction(text)
    assert repr(text) in str(refused.value)


@given(INSTRUCTIONS, st.integers(0, 1000))
def test_a_shift_moves_the_micro_batch_alone(instruction, by):
    moved = shifted(instruction, by)
    micro_batch = micro_batch_of(instruction)
    assert micro_batch_of(moved) == (None if micro_batch is None else micro_batch + by)
    assert (type(moved), moved.stage, moved.part) == (type(instruction), instruction.stage, instruction.part)


def test_stages_are_lettered_like_columns():
    lettered = {0: "A", 25: "Z", 26: "AA", 51: "AZ", 52: "BA", 701: "ZZ", 702: "AAA"}
    assert {stage: stage_letters(stage) for stage in lettered} == lettered
    assert stage_letters(1, 1) == "B2"
