"""Measures the time to create, check and cost the plan of a large pipeline."""

from __future__ import annotations

import gc
import pathlib
import sys
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from measure import interleave, median, print_table

from tensorflow_ipu.pipelining import PipelineSchedule, RecomputationMode, check_plan, pipeline_plan, plan_cost

STAGES = 64
COUNTS = (128, 4096)
TARGET = 1000.0  # Milliseconds to create and check the larger plan.


def contestants(
    schedule: PipelineSchedule, mode: RecomputationMode | None, count: int
) -> dict[str, Callable[[], object]]:
    """Returns the timed functions of one plan."""
    plan = pipeline_plan(STAGES, count, schedule, recomputation_mode=mode)
    return {
        "create": lambda: pipeline_plan(STAGES, count, schedule, recomputation_mode=mode),
        "check": lambda: check_plan(plan),
        "cost": lambda: plan_cost(plan),
    }


def main() -> None:
    """Prints a row for each schedule, recomputation mode and number of micro-batches."""
    calls: dict[str, Callable[[], object]] = {}
    rows = []
    for schedule in PipelineSchedule:
        for mode in (None, RecomputationMode.Auto):
            for count in COUNTS:
                name = f"{schedule.name}{', recomputing' if mode else ''}"
                calls |= {f"{name} {count} {what}": call for what, call in contestants(schedule, mode, count).items()}
                rows.append((name, count))
    # Without this, some calls would include a garbage collection of all of TensorFlow's objects.
    gc.collect()
    gc.freeze()
    times = interleave(calls)
    table = []
    for name, count in rows:
        create, check, cost = (median(times, f"{name} {count} {what}", 1) / 1e3 for what in ("create", "check", "cost"))
        table.append((name, count, create, check, cost, create + check, TARGET if count == max(COUNTS) else ""))
    print_table(
        f"{STAGES} stages, training; milliseconds (medians of 7 rounds)",
        ("schedule", "micro-batches", "create", "check", "cost", "create and check", "target"),
        table,
    )


if __name__ == "__main__":
    main()
