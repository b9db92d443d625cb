"""Pipelines: schedules as plans that are checked, drawn, costed and executed."""

from tensorflow_ipu.pipelining._buffers import Buffer, BufferKind, Effects
from tensorflow_ipu.pipelining._check import PlanError, check_plan
from tensorflow_ipu.pipelining._compare import Candidate, Comparison, compare_plans, contiguous_mappings
from tensorflow_ipu.pipelining._cost import IpuCost, PlanCost, Span, StageCost, plan_cost, timeline
from tensorflow_ipu.pipelining._enums import PhasedExecution, PipelineSchedule, RecomputationMode
from tensorflow_ipu.pipelining._instructions import (
    Backward,
    Forward,
    Idle,
    Load,
    Recompute,
    Save,
    Update,
    parse_instruction,
)
from tensorflow_ipu.pipelining._measure import measured_stage_costs
from tensorflow_ipu.pipelining._optimizer_output import OptimizerFunctionOutput
from tensorflow_ipu.pipelining._order import overlap_length
from tensorflow_ipu.pipelining._phased import parallel_phases_plan, serial_phases_plan
from tensorflow_ipu.pipelining._picture import draw_plan, draw_plans
from tensorflow_ipu.pipelining._pipeline import pipeline, recomputation_checkpoint
from tensorflow_ipu.pipelining._pipeline_arguments import PipelineOptions
from tensorflow_ipu.pipelining._pipelined import pipeline_plan, sharded_plan
from tensorflow_ipu.pipelining._plan import Plan, Section, Step, Task
from tensorflow_ipu.pipelining._stage_options import PipelineStageOptions
from tensorflow_ipu.pipelining._table import Table
from tensorflow_ipu.pipelining._text import plan_text
from tensorflow_ipu.pipelining._trace import plan_trace, write_trace
from tensorflow_ipu.pipelining._traced import TracedPipeline, last_pipeline, pipelines_of

__all__ = [
    "Backward",
    "Buffer",
    "BufferKind",
    "Candidate",
    "Comparison",
    "Effects",
    "Forward",
    "Idle",
    "IpuCost",
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
    "recomputation_checkpoint",
    "serial_phases_plan",
    "sharded_plan",
    "timeline",
    "write_trace",
]
