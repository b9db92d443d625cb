"""Instructions are values, and their text reads back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorflow_ipu.pipelining import Backward, Forward, Idle, Load, Recompute, Save, Update, parse_instruction
from tensorflow_ipu.pipelining.schedule.instructions import micro_batch_of, shifted, stage_letters

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


@given(st.lists(INSTRUCTIONS, unique=True))
def test_no_two_instructions_share_a_text(instructions):
    assert len({str(instruction) for instruction in instructions}) == len(instructions)


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
    before = micro_batch_of(instruction)
    assert micro_batch_of(moved) == (None if before is None else before + by)
    assert (type(moved), moved.stage, moved.part) == (type(instruction), instruction.stage, instruction.part)


def test_stages_are_lettered_like_columns():
    assert [stage_letters(stage) for stage in (0, 25, 26, 51, 52, 701, 702)] == [
        "A",
        "Z",
        "AA",
        "AZ",
        "BA",
        "ZZ",
        "AAA",
    ]
    assert stage_letters(1, 1) == "B2"
