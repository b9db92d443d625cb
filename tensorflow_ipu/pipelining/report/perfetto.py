"""A plan as a trace that Perfetto (https://ui.perfetto.dev) and Chrome open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorflow_ipu.pipelining.report.cost import plan_cost, timeline
from tensorflow_ipu.pipelining.report.prices import StageCosts
from tensorflow_ipu.pipelining.schedule.instructions import (
    Backward,
    Forward,
    Instruction,
    Load,
    Recompute,
    Save,
    micro_batch_of,
    stage_letters,
)
from tensorflow_ipu.pipelining.schedule.plan import Plan

if TYPE_CHECKING:
    from tensorflow_ipu.machine import Machine, System

_NAMES = {Forward: "forward", Backward: "backward", Recompute: "recompute"}


def plan_trace(
    plan: Plan,
    stage_costs: StageCosts = None,
    *,
    microseconds: float | None = None,
    machine: System | Machine | str | None = None,
) -> dict[str, Any]:
    """Makes a trace of one pass of a plan, in Chrome's JSON format.

    Each IPU is a track, each task a slice; further tracks have the sections, and where a machine is known, the exchanges
    between IPUs; a counter for each IPU has the micro-batches in its stashes.

    Args:
      plan: The plan.
      stage_costs: As for `plan_cost`.
      microseconds: How many microseconds of the trace a unit of the stages' times is. If omitted 1,000, or with a
        machine, where that unit is a second, as many as there are.
      machine: As for `plan_cost`.

    Returns:
      The trace, as what `json.dump` takes.
    """
    if microseconds is None:
        microseconds = 1e3 if machine is None else 1e6
    cost = plan_cost(plan, stage_costs, machine=machine)
    tracks = {ipu: number for number, ipu in enumerate(plan.ipus, 1)}
    events = [_meta("process_name", 0, name=plan.name), _meta("thread_name", 0, name="sections")]
    events += [_meta("thread_name", track, name=f"IPU {ipu}") for ipu, track in tracks.items()]
    if cost.exchange_share:
        events.append(_meta("thread_name", len(tracks) + 1, name="exchanges between IPUs"))
    held = dict.fromkeys(plan.ipus, 0)
    sections: list[tuple[str, float, float]] = []
    for section, begin, end, spans in timeline(plan, stage_costs, machine=machine):
        if sections and sections[-1][0] == section.name:
            sections[-1] = (section.name, sections[-1][1], end)
        else:
            sections.append((section.name, begin, end))
        computed = max((span.end for span in spans), default=begin)
        if end > computed:
            at = {"ts": computed * microseconds, "dur": (end - computed) * microseconds}
            events.append({"ph": "X", "pid": 0, "tid": len(tracks) + 1, **at, "name": "exchange", "cat": "exchange"})
        for span in spans:
            micro_batch = micro_batch_of(span.instruction)
            events.append(
                {
                    "ph": "X",
                    "pid": 0,
                    "tid": tracks[span.ipu],
                    "ts": span.begin * microseconds,
                    "dur": (span.end - span.begin) * microseconds,
                    "name": _name(span.instruction),
                    "cat": type(span.instruction).__name__.lower(),
                    "args": {"instruction": str(span.instruction)}
                    | ({} if micro_batch is None else {"micro-batch": micro_batch}),
                }
            )
            change = _stashed(plan, span.instruction)
            if change:
                held[span.ipu] += change
                at = (span.end if change > 0 else span.begin) * microseconds
                counter = {"ph": "C", "pid": 0, "name": f"stash of IPU {span.ipu}", "ts": at}
                events.append(counter | {"args": {"micro-batches": held[span.ipu]}})
    events += [
        {"ph": "X", "pid": 0, "tid": 0, "ts": begin * microseconds, "dur": (end - begin) * microseconds, "name": name}
        for name, begin, end in sections
    ]
    figures = {
        "utilisation": cost.utilisation,
        "bubble share": cost.bubble_share,
        "steps": plan.step_count,
        "slots": plan.slot_count,
        "micro-batches": plan.micro_batches,
        "peak stash bytes": cost.peak_stash_bytes,
        "peak bytes on a chip": cost.peak_bytes,
        "bytes off the chips": sum(ipu.off_chip_bytes for ipu in cost.ipus),
    }
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": figures}


def write_trace(
    plan: Plan,
    path: str | Path,
    stage_costs: StageCosts = None,
    *,
    microseconds: float | None = None,
    machine: System | Machine | str | None = None,
) -> None:
    """Writes `plan_trace(...)` to a file.

    Args:
      plan: The plan.
      path: The file; JSON.
      stage_costs: As for `plan_cost`.
      microseconds: As for `plan_trace`.
      machine: As for `plan_cost`.
    """
    made = plan_trace(plan, stage_costs, microseconds=microseconds, machine=machine)
    Path(path).write_text(json.dumps(made))


def _meta(kind: str, track: int, **arguments: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 0, "tid": track, "name": kind, "args": arguments}


def _name(instruction: Instruction) -> str:
    """For instance `B backward 3`."""
    letters = stage_letters(instruction.stage, instruction.part)
    micro_batch = micro_batch_of(instruction)
    behind = "" if micro_batch is None else f" {micro_batch}"
    if isinstance(instruction, Load | Save):
        inner = _NAMES.get(type(instruction.computation), "update")
        return f"{letters} {type(instruction).__name__.lower()} ({inner}){behind}"
    return f"{letters} {_NAMES.get(type(instruction), 'update')}{behind}"


def _stashed(plan: Plan, instruction: Instruction) -> int:
    """By how many micro-batches an instruction changes what its IPU's stashes hold."""
    if not plan.training:
        return 0
    if isinstance(instruction, Forward):
        return 1
    recomputes = plan.recomputation is not None and instruction.stage < plan.stages - 1
    return -isinstance(instruction, Recompute if recomputes else Backward)
