"""The command `pipeline`: plans a pipeline, estimates its time and memory, and draws it."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tensorflow_ipu._base.units import format_bytes, format_seconds
from tensorflow_ipu.analysis.pipelines.comparison import compare_plans
from tensorflow_ipu.analysis.pipelines.cost import PlanCost, StageCost, plan_cost
from tensorflow_ipu.analysis.pipelines.picture import draw_plans, write_trace
from tensorflow_ipu.cli.parsers import WRONG, execute, make_parser, show, show_json
from tensorflow_ipu.pipelining.schedule.check import check_plan
from tensorflow_ipu.pipelining.schedule.enums import Liveness, PipelineSchedule, RecomputationMode
from tensorflow_ipu.pipelining.schedule.phased import parallel_phases_plan, serial_phases_plan
from tensorflow_ipu.pipelining.schedule.pipelined import pipeline_plan, sharded_plan
from tensorflow_ipu.pipelining.schedule.plan import Plan, stage_letters
from tensorflow_ipu.pipelining.schedule.text import plan_text

_UNITS = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9, "s": 1.0}

_SCHEDULES = {schedule.name.lower(): schedule for schedule in PipelineSchedule}
_OTHER_SCHEDULES = ("sharded", "serial-phases", "parallel-phases")
_LIVENESS = {"always": Liveness.AlwaysLive, "forward": Liveness.OffChipAfterFwd, "each": Liveness.OffChipAfterEachPhase}
_MODES = {
    "auto": RecomputationMode.Auto,
    "then": RecomputationMode.RecomputeThenBackpropagate,
    "interleaved": RecomputationMode.RecomputeAndBackpropagateInterleaved,
}

_EPILOG = """\
examples:
  --stages 4 --micro-batches 8                              the plan with its time and memory
  --stages 4 --micro-batches 8 --schedule interleaved --png plan.png
  --stages 4 --micro-batches 8 --mapping 0,1+2,2,3          stage 1 in two parts, on IPUs 1 and 2
  --stages 4 --micro-batches 16 --times 1,2,1,1 --compare   the best schedule and mapping
  --stages 4 --micro-batches 16 --machine GC200 --times 1.5ms,2ms,2ms,1ms --input-bytes 4MiB
                                                            times in seconds, with transfers over the links
"""


def main(arguments: Sequence[str]) -> int:
    # If TensorFlow is imported, a wrong number of micro-batches raises its `FailedPreconditionError`.
    errors = getattr(sys.modules.get("tensorflow"), "errors", None)
    error_types = (TypeError, NotImplementedError, *((errors.FailedPreconditionError,) if errors else ()))
    return execute(parser(), arguments, lambda options: (_compare if options.compare else _show)(options), error_types)


def parser() -> argparse.ArgumentParser:
    text = "Plans a pipeline: the work of each IPU in each step, its memory, and the time of the whole plan."
    parser = make_parser("pipeline", text, "0", examples=_EPILOG)
    add = parser.add_argument
    add("--stages", metavar="N", type=int, help="the number of stages; default: the number of stages in --mapping")
    text = "the number of micro-batches for one weight update (gradient_accumulation_count)"
    add("--micro-batches", metavar="N", type=int, help=text)
    schedules = [*_SCHEDULES, *_OTHER_SCHEDULES]
    text = f"{', '.join(schedules)}; default: grouped"
    add("--schedule", choices=schedules, default="grouped", metavar="NAME", help=text)
    text = "the IPU of each stage, as in 0,1,1,0; 1+2 is a stage of two concurrent parts"
    add("--mapping", metavar="IPUS", type=_mapping, help=text)
    add("--inference", action="store_true", help="plan without backward passes and updates")
    text = f"recompute activations: {', '.join(_MODES)}; default without MODE: auto"
    add("--recompute", nargs="?", choices=sorted(_MODES), const="auto", metavar="MODE", help=text)
    text = "when a phase leaves the chip: never (always), after its forward phase (forward), or after each (each, the default)"
    add("--liveness", choices=[*_LIVENESS], help=text)
    add("--repeat", metavar="N", type=int, default=1, help="the number of times that the plan is executed; default: 1")
    text = "split each micro-batch into N parts, which run one after the other"
    add("--batch-serialization", type=int, default=1, metavar="N", help=text)
    text = "One value for all stages, or one for each, as in 1,2,1,1. Sizes are as in 4MiB; units are powers of 1024."
    add = parser.add_argument_group("costs of stages", text).add_argument
    text = "the machine whose links and memory move data, such as GC200 or 'Bow Pod16'; times are then seconds, or as in 1.5ms"
    add("--machine", metavar="NAME", help=text)
    add("--times", metavar="T", type=_times, help="the time of a forward pass, in any unit; default: 1")
    add("--backward-times", metavar="T", type=_times, help="the time of a backward pass; default: twice --times")
    text = "the time of a recomputation, as a multiple of --times; default: 1"
    add("--recompute-factor", type=float, default=1.0, help=text)
    text = "the time of an update; default: 0.5, or with --machine half of --times"
    add("--update-times", metavar="T", type=_times, help=text)
    text = "the time of a load or save; default: 0.5; with --machine it follows from the sizes"
    add("--transfer-times", metavar="T", type=_times, help=text)
    text = "the size of the activations that a backward pass needs from its forward pass"
    add("--activation-bytes", metavar="SIZE", type=_sizes, help=text)
    add("--input-bytes", metavar="SIZE", type=_sizes, help="the size of the stage's inputs")
    add("--weight-bytes", metavar="SIZE", type=_sizes, help="the size of the stage's weights")
    add = parser.add_argument_group("output").add_argument
    add("--png", type=Path, metavar="FILE", help="draw the plan to this file")
    add("--trace", type=Path, metavar="FILE", help="write a trace of the plan for https://ui.perfetto.dev")
    add("--json", action="store_true", help="print JSON, for other programs")
    add("--compare", action="store_true", help="compare schedules and mappings; --png draws the best of each schedule")
    add("--ipus", metavar="N", type=int, help="with --compare: the number of IPUs")
    text = "with --compare: the memory of an IPU, as in 600MiB"
    add("--bytes-per-ipu", metavar="SIZE", type=_size, help=text)
    return parser


def _show(options: argparse.Namespace) -> int:
    plan = _plan(options)
    check_plan(plan)
    stage_costs = _costs(options, plan.stages)
    cost = plan_cost(plan, stage_costs, machine=options.machine)
    if options.json:
        show_json({"plan": plan_text(plan), **_plain(cost)})
    else:
        show(f"{plan_text(plan)}\n\n{_figures(cost, _time_text(options))}")
    _write(options, [plan], stage_costs)
    return 0


def _compare(options: argparse.Namespace) -> int:
    stages = _stages(options)
    stage_costs = _costs(options, stages)
    comparison = compare_plans(
        stages,
        _micro_batches(options),
        stage_costs,
        ipus=options.ipus,
        training=not options.inference,
        recompute=True if options.recompute else None,
        bytes_per_ipu=options.bytes_per_ipu,
        machine=options.machine,
    )
    time_text = _time_text(options)
    accepted = [candidate for candidate in comparison.candidates if not candidate.refused]
    # Without sizes on the command line, all memory is 0 and its columns are omitted.
    has_sizes = any(candidate.cost and candidate.cost.peak_bytes for candidate in accepted)
    memory_titles = f"  {'stash':>9}  {'memory':>9}" if has_sizes else ""
    lines = [f"{'time':>10}  {'bubble':>6}{memory_titles}"]
    for candidate in accepted[:12]:
        cost = candidate.cost
        assert cost is not None
        memory = f"{format_bytes(cost.peak_stash_bytes):>9}  {format_bytes(cost.peak_bytes):>9}  " if has_sizes else ""
        lines.append(f"{time_text(cost.time):>10}  {cost.bubble_share:6.0%}  {memory}{candidate.label}")
    if len(accepted) > 12:
        lines.append(f"and {len(accepted) - 12} more that can run")
    if options.json:
        candidates = [
            {"name": candidate.label, "refused": candidate.refused, **_plain(candidate.cost)}
            for candidate in comparison.candidates
        ]
        show_json({"reason": comparison.reason, "candidates": candidates})
    else:
        show("\n".join([*lines, "", comparison.reason]))
    best = [candidate for schedule in PipelineSchedule if (candidate := comparison.best_of(schedule))]
    if best:
        best.sort(key=comparison.candidates.index)
        _write(options, [candidate.cost.plan for candidate in best if candidate.cost], stage_costs)
    return 0 if best else WRONG


def _write(options: argparse.Namespace, plans: list[Plan], stage_costs: list[StageCost]) -> None:
    if options.png:
        draw_plans(plans, options.png, stage_costs, machine=options.machine)
    if options.trace:
        write_trace(plans[0], options.trace, stage_costs, machine=options.machine)
    for kind, path in {"picture": options.png, "trace": options.trace}.items():
        if path and not options.json:
            show(f"{kind}: {path}")


def _plan(options: argparse.Namespace) -> Plan:
    mode = _MODES[options.recompute] if options.recompute else None
    training = not options.inference
    if options.liveness and not options.schedule.endswith("-phases"):
        raise ValueError("`--liveness` is for `--schedule serial-phases` and `--schedule parallel-phases`")
    stages = _stages(options)
    mapping = list(range(stages)) if options.mapping is None else options.mapping
    if options.stages is not None and options.stages != len(mapping):
        raise ValueError(f"`--stages` is {stages}, but `--mapping` has {len(mapping)} items")
    if options.batch_serialization != 1 and options.mapping is None:
        mapping = None
    if options.schedule in _SCHEDULES:
        return pipeline_plan(
            stages,
            _micro_batches(options),
            _SCHEDULES[options.schedule],
            device_mapping=mapping,
            training=training,
            recomputation_mode=mode,
            repeat_count=options.repeat,
            batch_serialization_iterations=options.batch_serialization,
        )
    count = 1 if options.micro_batches is None else options.micro_batches
    if options.batch_serialization != 1:
        raise ValueError("`--batch-serialization` is for `--schedule sequential`")
    if options.schedule == "sharded":
        return sharded_plan(
            mapping or [], micro_batches=count, training=training, recomputation_mode=mode, repeat_count=options.repeat
        )
    if mode:
        raise ValueError("`--recompute` is for pipelines and sharded models; phases keep activations off the chip")
    if options.mapping is None:
        mapping = [0] * stages if options.schedule == "serial-phases" else [stage % 2 for stage in range(stages)]
    make = serial_phases_plan if options.schedule == "serial-phases" else parallel_phases_plan
    liveness = _LIVENESS[options.liveness or "each"]
    return make(mapping or [], micro_batches=count, training=training, repeat_count=options.repeat, liveness=liveness)


def _stages(options: argparse.Namespace) -> int:
    if options.stages is not None:
        return options.stages
    if options.mapping is None:
        raise ValueError("neither `--stages` nor `--mapping` is set; set one of them")
    return len(options.mapping)


def _micro_batches(options: argparse.Namespace) -> int:
    if options.micro_batches is None:
        raise ValueError("`--micro-batches` is missing; set it to the number of micro-batches for one weight update")
    return options.micro_batches


def _costs(options: argparse.Namespace, stages: int) -> list[StageCost]:
    def spread(name: str, default: list[float]) -> list[float]:
        values: list[float] = getattr(options, name) or default
        if len(values) not in (1, stages):
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"`{option}` has {len(values)} values, but there are {stages} stages; give 1 or {stages}")
        return values if len(values) == stages else values * stages

    if options.machine is not None and options.times is None:
        raise ValueError(
            "`--machine` gives only the times of links and memory; set `--times` of the stages, as in 1.5ms"
        )
    if options.machine is not None and options.transfer_times is not None:
        raise ValueError("`--transfer-times` is for plans without `--machine`, which gives the times of transfers")
    times = spread("times", [1.0])
    columns = {
        "forward": times,
        "backward": spread("backward_times", [2 * time for time in times]),
        "update": spread("update_times", [0.5] if options.machine is None else [time / 2 for time in times]),
        "load": spread("transfer_times", [0.5]),
        "save": spread("transfer_times", [0.5]),
        **{name: spread(name, [0.0]) for name in ("activation_bytes", "input_bytes", "weight_bytes")},
    }
    rows: list[dict[str, Any]] = [{name: column[stage] for name, column in columns.items()} for stage in range(stages)]
    return [StageCost(recompute_factor=options.recompute_factor, **row) for row in rows]


def _time_text(options: argparse.Namespace) -> Callable[[float], str]:
    """Returns the function that formats times; without `--machine`, times have no unit."""
    return "{:.6g}".format if options.machine is None else format_seconds


def _figures(cost: PlanCost, time_text: Callable[[float], str]) -> str:
    plan = cost.plan
    parts = {"recompute": cost.recompute_share, "transfers": cost.transfer_share, "exchanges": cost.exchange_share}
    shares = {"utilisation": cost.utilisation, **{name: share for name, share in parts.items() if share}}
    shares["bubble"] = cost.bubble_share
    text = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
    lines = [f"time {time_text(cost.time)}, {time_text(cost.time_per_micro_batch)} a micro-batch; {text}"]
    if plan.training or cost.peak_bytes:
        for ipu in cost.ipus:
            stages = ", ".join(
                stage_letters(stage, part) for stage, part, ipu_of_part in plan.places() if ipu_of_part == ipu.ipu
            )
            line = f"IPU {ipu.ipu}: stages {stages}; stash {format_bytes(ipu.stash_bytes)}"
            line += f", in all {format_bytes(ipu.on_chip_bytes)}"
            lines.append(line + (f", off the chip {format_bytes(ipu.off_chip_bytes)}" if ipu.off_chip_bytes else ""))
    return "\n".join(lines if cost.peak_bytes else lines[:1])


def _plain(cost: PlanCost | None) -> dict[str, object]:
    """Returns the figures of a plan for JSON; empty for a plan that is rejected."""
    if cost is None:
        return {}
    figures = {name: value for name, value in vars(cost).items() if name not in ("plan", "ipus")}
    ipus = [{**vars(ipu), "on_chip_bytes": ipu.on_chip_bytes} for ipu in cost.ipus]
    return {**figures, "peak_bytes": cost.peak_bytes, "peak_stash_bytes": cost.peak_stash_bytes, "ipus": ipus}


def _mapping(text: str) -> list[int | list[int]]:
    mapping: list[int | list[int]] = []
    for item in text.split(","):
        ipus = item.split("+")
        if not all(ipu.strip().isdigit() for ipu in ipus):
            raise argparse.ArgumentTypeError(f"`{item}` in `{text}` is no IPU; write numbers, as in 0,1+2,2,3")
        mapping.append([int(ipu) for ipu in ipus] if len(ipus) > 1 else int(item))
    return mapping


def _times(text: str) -> list[float]:
    try:
        return [_time(item.strip()) for item in text.split(",")]
    except ValueError as exc:
        raise argparse.ArgumentTypeError(
            f"`{text}` is no list of times; write numbers, as in 1,2,1.5, or with units, as in 1.5ms,20us"
        ) from exc


def _time(text: str) -> float:
    for unit, scale in _UNITS.items():
        if text.endswith(unit):
            return float(text[: -len(unit)]) * scale
    return float(text)


def _sizes(text: str) -> list[float]:
    return [_size(item) for item in text.split(",")]


def _size(text: str) -> float:
    match = re.fullmatch(r"\s*([\d.]+)\s*([kKMG]i?)?B?\s*", text)
    try:
        if match is None:
            raise ValueError(text)
        factor = 1024 ** " KMG".index((match.group(2) or " ")[0].upper())
        return float(match.group(1)) * factor
    except ValueError as exc:
        raise argparse.ArgumentTypeError(f"`{text}` is no size; write it as in 4MiB or 300000") from exc
