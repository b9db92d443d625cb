"""The plans of a table of cases are equal to the files in `golden/`, which `python test_golden.py` writes."""

from pathlib import Path

import pytest

from tensorflow_ipu.pipelining import (
    PipelineSchedule,
    RecomputationMode,
    check_plan,
    parallel_phases_plan,
    pipeline_plan,
    plan_text,
    serial_phases_plan,
    sharded_plan,
)

GOLDEN = Path(__file__).with_name("golden")

GROUPED, INTERLEAVED, SEQUENTIAL = PipelineSchedule
THEN = RecomputationMode.RecomputeThenBackpropagate
WITHIN = RecomputationMode.RecomputeAndBackpropagateInterleaved


def cases():
    """Returns the plans of all cases by the names of their files."""
    return {
        "grouped_4x8": pipeline_plan(4, 8),
        "grouped_4x4_inference": pipeline_plan(4, 4, training=False),
        "grouped_3x6_recompute_then": pipeline_plan(3, 6, recomputation_mode=THEN),
        "grouped_3x6_recompute_within": pipeline_plan(3, 6, recomputation_mode=WITHIN),
        "grouped_4x8_on_two_ipus": pipeline_plan(4, 8, device_mapping=[0, 1, 1, 0]),
        "grouped_4x8_concurrent": pipeline_plan(4, 8, device_mapping=[0, [1, 2], 2, 3]),
        "grouped_2x4096": pipeline_plan(2, 4096),
        "grouped_2x8_repeated": pipeline_plan(2, 8, repeat_count=3),
        "interleaved_3x6": pipeline_plan(3, 6, INTERLEAVED),
        "interleaved_4x8_recompute": pipeline_plan(4, 8, INTERLEAVED, recomputation_mode=THEN),
        "interleaved_4x4_on_two_ipus_inference": pipeline_plan(
            4, 4, INTERLEAVED, device_mapping=[0, 1, 1, 0], training=False
        ),
        "interleaved_8x6_uneven_inference": pipeline_plan(
            8, 6, INTERLEAVED, device_mapping=[0, 1, 2, 0, 0, 2, 1, 0], training=False
        ),
        "interleaved_3x3_concurrent": pipeline_plan(3, 3, INTERLEAVED, device_mapping=[0, [1, 2], 3]),
        "sequential_3x2": pipeline_plan(3, 2, SEQUENTIAL),
        "sequential_3x2_recompute": pipeline_plan(3, 2, SEQUENTIAL, recomputation_mode=WITHIN),
        "sequential_2x2_serialized": pipeline_plan(2, 2, SEQUENTIAL, batch_serialization_iterations=3),
        "sharded_2_inference": sharded_plan([0, 1], training=False),
        "serial_phases_3": serial_phases_plan([[0, 1]] * 3),
        "serial_phases_3x2_inference": serial_phases_plan([0] * 3, micro_batches=2, training=False),
        "parallel_phases_3x2": parallel_phases_plan([[0, 2], [1, 3], [0, 2]], micro_batches=2),
        "parallel_phases_4x2_inference": parallel_phases_plan([0, 1, 0, 1], micro_batches=2, training=False),
    }


@pytest.mark.parametrize("name", cases())
def test_the_plan_is_that_of_the_golden_file(name):
    plan = cases()[name]
    check_plan(plan)
    assert plan_text(plan) + "\n" == (GOLDEN / f"{name}.txt").read_text()


def test_every_golden_file_has_its_case():
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(cases())


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, plan in cases().items():
        (GOLDEN / f"{name}.txt").write_text(plan_text(plan) + "\n")
