"""Draws the pictures of `pipeline_plans.md`, and stores them in the folder of this file."""

from __future__ import annotations

from pathlib import Path

from tensorflow_ipu import pipelining
from tensorflow_ipu.pipelining import PipelineSchedule, RecomputationMode, StageCost, pipeline_plan

HERE = Path(__file__).parent
MIB = 2**20
COST = StageCost(activation_bytes=4 * MIB, input_bytes=MIB / 4, weight_bytes=MIB)
MODES = (
    None,
    RecomputationMode.RecomputeThenBackpropagate,
    RecomputationMode.RecomputeAndBackpropagateInterleaved,
)


def main() -> None:
    """Draws all pictures."""
    pipelining.draw_plan(pipeline_plan(4, 16), HERE / "plan_grouped.png", COST)
    schedules = [pipeline_plan(3, 6, schedule) for schedule in PipelineSchedule]
    pipelining.draw_plans(schedules, HERE / "plan_schedules.png", COST)
    recomputing = [pipeline_plan(4, 8, recomputation_mode=mode) for mode in MODES]
    recomputing.append(pipeline_plan(4, 8, PipelineSchedule.Interleaved, recomputation_mode=RecomputationMode.Auto))
    pipelining.draw_plans(recomputing, HERE / "plan_recomputation.png", COST)
    concurrent = {
        "Stage B in two concurrent parts, on IPUs 1 and 2; 6 micro-batches": pipeline_plan(
            3, 6, device_mapping=[0, [1, 2], 3]
        ),
        "The same parts one after the other, as stages B and C; 8 micro-batches": pipeline_plan(4, 8),
    }
    pipelining.draw_plans(list(concurrent.values()), HERE / "plan_concurrent.png", COST, titles=list(concurrent))
    phases = [
        pipelining.sharded_plan([0, 1, 2, 3]),
        pipelining.serial_phases_plan([0] * 4),
        pipelining.parallel_phases_plan([0, 1, 0, 1]),
    ]
    pipelining.draw_plans(phases, HERE / "plan_phases.png", COST)


if __name__ == "__main__":
    main()
