"""Pipelines of stages on several IPUs: their plans, and the programs that execute them."""

import importlib
from typing import TYPE_CHECKING, Any

from tensorflow_ipu.pipelining.schedule.check import PlanError, check_plan
from tensorflow_ipu.pipelining.schedule.enums import Liveness, PhasedExecution, PipelineSchedule, RecomputationMode
from tensorflow_ipu.pipelining.schedule.phased import parallel_phases_plan, serial_phases_plan
from tensorflow_ipu.pipelining.schedule.pipelined import overlap_length, pipeline_plan, sharded_plan
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
from tensorflow_ipu.pipelining.schedule.text import Table, plan_text

if TYPE_CHECKING:
    from tensorflow_ipu.analysis.pipelines.comparison import (
        Balance,
        Candidate,
        Comparison,
        balance,
        compare_plans,
        contiguous_mappings,
    )
    from tensorflow_ipu.analysis.pipelines.cost import IpuCost, PlanCost, Span, StageCost, plan_cost, timeline
    from tensorflow_ipu.analysis.pipelines.passes import measured_stage_costs, predicted_stage_costs
    from tensorflow_ipu.analysis.pipelines.picture import draw_plan, draw_plans, plan_trace, write_trace
    from tensorflow_ipu.analysis.pipelines.report import report_of_pipeline
    from tensorflow_ipu.pipelining._pipeline import pipeline, recomputation_checkpoint
    from tensorflow_ipu.pipelining.options import PipelineOptions, PipelineStageOptions
    from tensorflow_ipu.pipelining.program import TracedPipeline, last_pipeline, pipelines_of
    from tensorflow_ipu.pipelining.weight_update import OptimizerFunctionOutput

# Plans need neither TensorFlow nor a model of the machine. Modules that need one are imported at the first use of a name.
_HOLDERS = {
    name: f"tensorflow_ipu.{module}"
    for module, names in {
        "analysis.pipelines.comparison": "Balance Candidate Comparison balance compare_plans contiguous_mappings",
        "analysis.pipelines.cost": "IpuCost PlanCost Span StageCost plan_cost timeline",
        "analysis.pipelines.passes": "measured_stage_costs predicted_stage_costs",
        "analysis.pipelines.picture": "draw_plan draw_plans plan_trace write_trace",
        "analysis.pipelines.report": "report_of_pipeline",
        "pipelining._pipeline": "pipeline recomputation_checkpoint",
        "pipelining.options": "PipelineOptions PipelineStageOptions",
        "pipelining.program": "TracedPipeline last_pipeline pipelines_of",
        "pipelining.weight_update": "OptimizerFunctionOutput",
    }.items()
    for name in names.split()
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
        if name in _HOLDERS:
            return getattr(importlib.import_module(_HOLDERS[name]), name)
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
