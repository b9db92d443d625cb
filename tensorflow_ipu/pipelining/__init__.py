"""Pipelines: schedules as plans that are checked, drawn, costed and executed."""

import importlib
from typing import TYPE_CHECKING, Any

from tensorflow_ipu.pipelining.report.comparison import (
    Balance,
    Candidate,
    Comparison,
    balance,
    compare_plans,
    contiguous_mappings,
)
from tensorflow_ipu.pipelining.report.cost import IpuCost, PlanCost, Span, StageCost, plan_cost, timeline
from tensorflow_ipu.pipelining.report.picture import draw_plan, draw_plans, plan_trace, write_trace
from tensorflow_ipu.pipelining.schedule.check import PlanError, check_plan
from tensorflow_ipu.pipelining.schedule.enums import Liveness, PhasedExecution, PipelineSchedule, RecomputationMode
from tensorflow_ipu.pipelining.schedule.phased import parallel_phases_plan, serial_phases_plan
from tensorflow_ipu.pipelining.schedule.pipelined import pipeline_plan, sharded_plan
from tensorflow_ipu.pipelining.schedule.plan import (
    Backward,
    Buffer,
    BufferKind,
    Effects,
    Forward,
    Idle,
    Load,
    Plan,
    Recompute,
    Save,
    Section,
    Step,
    Task,
    Update,
    parse_instruction,
)
from tensorflow_ipu.pipelining.schedule.plan_arguments import overlap_length
from tensorflow_ipu.pipelining.schedule.text import Table, plan_text

if TYPE_CHECKING:
    from tensorflow_ipu.pipelining._pipeline import pipeline, recomputation_checkpoint
    from tensorflow_ipu.pipelining.options import PipelineOptions, PipelineStageOptions
    from tensorflow_ipu.pipelining.prediction.passes import measured_stage_costs, predicted_stage_costs
    from tensorflow_ipu.pipelining.prediction.report import report_of_pipeline
    from tensorflow_ipu.pipelining.program.build import TracedPipeline, last_pipeline, pipelines_of
    from tensorflow_ipu.pipelining.weight_update import OptimizerFunctionOutput

# What runs programs needs TensorFlow; plans and reports do not.
_PROGRAMS = {
    "pipeline": "_pipeline",
    "recomputation_checkpoint": "_pipeline",
    "measured_stage_costs": "prediction.passes",
    "predicted_stage_costs": "prediction.passes",
    "report_of_pipeline": "prediction.report",
    "TracedPipeline": "program.build",
    "last_pipeline": "program.build",
    "pipelines_of": "program.build",
    "OptimizerFunctionOutput": "weight_update",
    "PipelineOptions": "options",
    "PipelineStageOptions": "options",
}

__all__ = [
    "Backward",
    "Balance",
    "Buffer",
    "BufferKind",
    "Candidate",
    "Comparison",
    "Effects",
    "Forward",
    "Idle",
    "IpuCost",
    "Liveness",
    "Load",
    "OptimizerFunctionOutput",
    "PhasedExecution",
    "PipelineOptions",
    "PipelineSchedule",
    "PipelineStageOptions",
    "Plan",
    "PlanCost",
    "PlanError",
    "RecomputationMode",
    "Recompute",
    "Save",
    "Section",
    "Span",
    "StageCost",
    "Step",
    "Table",
    "Task",
    "TracedPipeline",
    "Update",
    "balance",
    "check_plan",
    "compare_plans",
    "contiguous_mappings",
    "draw_plan",
    "draw_plans",
    "last_pipeline",
    "measured_stage_costs",
    "overlap_length",
    "parallel_phases_plan",
    "parse_instruction",
    "pipeline",
    "pipeline_plan",
    "pipelines_of",
    "plan_cost",
    "plan_text",
    "plan_trace",
    "predicted_stage_costs",
    "recomputation_checkpoint",
    "report_of_pipeline",
    "serial_phases_plan",
    "sharded_plan",
    "timeline",
    "write_trace",
]


if not TYPE_CHECKING:  # A misspelled name is an error for type checkers.

    def __getattr__(name: str) -> Any:
        if name in _PROGRAMS:
            return getattr(importlib.import_module(f"{__name__}.{_PROGRAMS[name]}"), name)
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
