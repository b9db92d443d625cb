"""The pipelines that programs run, for who wants to look at them."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tensorflow_ipu._tensorflow import functions, graphs
from tensorflow_ipu.pipelining.arguments.hardware_options import PipelineOptions
from tensorflow_ipu.pipelining.report.stage_cost import StageCost
from tensorflow_ipu.pipelining.schedule.plan import Plan
from tensorflow_ipu.pipelining.stages.part import Place, StagePart

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorflow_ipu._types import Nested
    from tensorflow_ipu.pipelining.program.footprint import Footprint
    from tensorflow_ipu.pipelining.training.update import WeightUpdate

# Of the graph of a function: the pipelines that were traced in it, with their stages.
_ATTRIBUTE = "_ipu_pipelines"


class Parts(dict[Place, StagePart]):
    """The stages of a pipeline as functions, by stage and part: what lives as long as the program.

    Attributes:
      weight_update: The weight update; None in inference.
      footprint: What the program keeps, once it is laid out.
    """

    weight_update: WeightUpdate | None = None
    footprint: Footprint | None = None


@dataclass(frozen=True)
class TracedPipeline:
    """A pipeline as a program runs it.

    Attributes:
      name: As given to `pipeline`, or None.
      plan: The plan that is executed. Where the number of micro-batches is known at run time only, the plan for the
        smallest one with a steady section; `plan.with_micro_batches` gives that of any other.
      options: What was asked for and changes nothing in the emulator.
      stage_costs: The bytes of each stage, or of each of its parts, as traced; the times are the defaults of `StageCost`.
        See `predicted_stage_costs` and `measured_stage_costs` for times.
    """

    name: str | None
    plan: Plan
    options: PipelineOptions
    stage_costs: tuple[StageCost | tuple[StageCost, ...], ...]
    # Weak, since a program may be large, and has queues whose threads end with them.
    _parts: weakref.ref[Parts] = field(repr=False, compare=False)

    def parts(self) -> Parts:
        """The stages as functions.

        Raises:
          RuntimeError: The program is gone.
        """
        parts = self._parts()
        if parts is None:
            raise RuntimeError("the program of this pipeline is gone: keep the `tf.function`, and ask again")
        return parts


_last: TracedPipeline | None = None


def note(pipeline: TracedPipeline) -> None:
    """Keeps a pipeline with all functions that are being traced."""
    global _last  # noqa: PLW0603
    _last = pipeline
    for graph in graphs.being_traced():
        setattr(graph, _ATTRIBUTE, [*getattr(graph, _ATTRIBUTE, []), (pipeline, pipeline.parts())])


def last_pipeline() -> TracedPipeline:
    """The pipeline that was traced last in this process.

    A program is traced when it first runs. After that, its pipeline can be drawn, checked and costed:

        strategy.run(train)
        pipelining.draw_plan(pipelining.last_pipeline().plan, "plan.png")

    Raises:
      RuntimeError: None was traced yet.
    """
    if _last is None:
        raise RuntimeError("no pipeline was traced yet: run a program that calls `pipeline` first")
    return _last


def pipelines_of(program: Callable[..., Nested]) -> tuple[TracedPipeline, ...]:
    """The pipelines of a program that has run, in the order in which it calls them.

    Args:
      program: A `tf.function(jit_compile=True)` that was run, or a concrete function.

    Returns:
      Those of its latest trace; none if it was not traced, or has none.
    """
    traces: list[Any] = functions.traces_of(program) if isinstance(program, functions.Function) else [program]
    return tuple(pipeline for pipeline, _ in getattr(traces[-1].graph, _ATTRIBUTE, ())) if traces else ()
