"""The command `pipeline`, which plans a pipeline."""

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
_OTHERS = ("sharded", "serial-phases", "parallel-phases")
_LIVENESS = {"always": Liveness.AlwaysLive, "forward": Liveness.OffChipAfterFwd, "each": Liveness.OffChipAfterEachPhase}
_MODES = {
    "auto": RecomputationMode.Auto,
    "then": RecomputationMode.RecomputeThenBackpropagate,
    "interleaved": RecomputationMode.RecomputeAndBackpropagateInterleaved,
}

_EPILOG = """\
examples:
  --stages 4 --micro-batches 8                              the plan, its figures
  --stages 4 --micro-batches 8 --schedule interleaved --png plan.png
  --stages 4 --micro-batches 8 --mapping 0,1+2,2,3          stage 1 in two parts, on IPUs 1 and 2
  --stages 4 --micro-batches 16 --times 1,2,1,1 --compare   which schedule and mapping is the best
  --stages 4 --micro-batches 16 --machine GC200 --times 1.5ms,2ms,2ms,1ms --input-bytes 4MiB
                                                            the same in time, with exchanges over the links
"""


def main(arguments: Sequence[str]) -> int:
    # The kind of a wrong multiple is TensorFlow's in a process that has imported that.
    errors = getattr(sys.modules.get("tensorflow"), "errors", None)
    kinds = (TypeError, NotImplementedError, *((errors.FailedPreconditionError,) if errors else ()))
    return execute(parser(), arguments, lambda options: (_compare if options.compare else _show)(options), kinds)


def parser() -> argparse.ArgumentParser:
    words = "Plans a pipeline: which IPU does what when, what it keeps in memory, and what it costs."
    parser = make_parser("pipeline", words, "0", examples=_EPILOG)
    add = parser.add_argument
    add("--stages", metavar="N", type=int, help="how many stages; as many as --mapping names if omitted")
    words = "how many micro-batches a pass (gradient_accumulation_count)"
    add("--micro-batches", metavar="N", type=int, help=words)
    schedules = [*_SCHEDULES, *_OTHERS]
    words = f"{', '.join(schedules)}; default: grouped"
    add("--schedule", choices=schedules, default="grouped", metavar="NAME", help=words)
    words = "the IPU of each stage, as in 0,1,1,0; 1+2 for two concurrent parts"
    add("--mapping", metavar="IPUS", type=_mapping, help=words)
    add("--inference", action="store_true", help="no backward passes, no update")
    words = f"recompute activations: {', '.join(_MODES)}; default: auto"
    add("--recompute", nargs="?", choices=sorted(_MODES), const="auto", metavar="MODE", help=words)
    words = "whether phases are always on the chip, leave it after their forward phase, or after each; default: each"
    add("--liveness", choices=[*_LIVENESS], help=words)
    add("--repeat", metavar="N", type=int, default=1, help="how often the pass is run")
    add("--batch-serialization", type=int, default=1, metavar="N", help="cut each micro-batch in N")
    words = "one value for all, or one a stage as in 1,2,1,1; sizes as in 4MiB, in powers of 1024"
    add = parser.add_argument_group("what the stages cost", words).add_argument
    words = "the machine whose links and memory move data, such as GC200 or 'Bow Pod16'; times are then seconds, or as in 1.5ms"
    add("--machine", metavar="NAME", help=words)
    add("--times", metavar="T", type=_times, help="of a forward pass, in any unit; default: 1")
    add("--backward-times", metavar="T", type=_times, help="default: twice --times")
    add("--recompute-factor", type=float, default=1.0, help="recomputation, in forward passes; default: 1")
    words = "of an update; default: 0.5, with --machine half of --times"
    add("--update-times", metavar="T", type=_times, help=words)
    words = "of a load or save; default: 0.5; with --machine it is what the bytes take"
    add("--transfer-times", metavar="T", type=_times, help=words)
    words = "what a backward pass needs of a forward pass"
    add("--activation-bytes", metavar="SIZE", type=_sizes, help=words)
    add("--input-bytes", metavar="SIZE", type=_sizes, help="of a stage's inputs")
    add("--weight-bytes", metavar="SIZE", type=_sizes, help="of a stage's weights")
    add = parser.add_argument_group("what comes out").add_argument
    add("--png", type=Path, metavar="FILE", help="draw it")
    add("--trace", type=Path, metavar="FILE", help="write it for https://ui.perfetto.dev")
    add("--json", action="store_true", help="print it as JSON, for other programs")
    add("--compare", action="store_true", help="name the best schedule and mapping; --png draws each")
    add("--ipus", metavar="N", type=int, help="with --compare: how many IPUs there are")
    words = "with --compare: how much fits on an IPU, as in 600MiB"
    add("--bytes-per-ipu", metavar="SIZE", type=_size, help=words)
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
    run = [one for one in comparison.candidates if not one.refused]
    sized = any(one.cost and one.cost.peak_bytes for one in run)  # Else nobody said how large anything is.
    lines = [f"{'time':>10}  {'bubble':>6}" + f"  {'stash':>9}  {'memory':>9}" * sized]
    for one in run[:12]:
        cost = one.cost
        assert cost is not None
        memory = f"{format_bytes(cost.peak_stash_bytes):>9}  {format_bytes(cost.peak_bytes):>9}  " if sized else ""
        lines.append(f"{time_text(cost.time):>10}  {cost.bubble_share:6.0%}  {memory}{one.label}")
    if len(run) > 12:
        lines.append(f"and {len(run) - 12} more that can be run")
    if options.json:
        candidates = [{"name": one.label, "refused": one.refused, **_plain(one.cost)} for one in comparison.candidates]
        show_json({"reason": comparison.reason, "candidates": candidates})
    else:
        show("\n".join([*lines, "", comparison.reason]))
    best = [found for schedule in PipelineSchedule if (found := comparison.best_of(schedule))]
    if best:
        best.sort(key=comparison.candidates.index)
        _write(options, [one.cost.plan for one in best if one.cost], stage_costs)
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
        raise ValueError("`--liveness` is for `--schedule serial-phases` and `parallel-phases`")
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
        raise ValueError("neither `--stages` nor `--mapping` is given; say how many stages there are")
    return len(options.mapping)


def _micro_batches(options: argparse.Namespace) -> int:
    if options.micro_batches is None:
        raise ValueError("`--micro-batches` is missing; say how many micro-batches a pass has")
    return options.micro_batches


def _costs(options: argparse.Namespace, stages: int) -> list[StageCost]:
    def spread(name: str, default: list[float]) -> list[float]:
        values: list[float] = getattr(options, name) or default
        if len(values) not in (1, stages):
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"`{option}` has {len(values)} values, but there are {stages} stages; give 1 or {stages}")
        return values if len(values) == stages else values * stages

    if options.machine is not None and options.times is None:
        raise ValueError("`--machine` tells what links and memory take; say what stages take by `--times`, as in 1.5ms")
    if options.machine is not None and options.transfer_times is not None:
        raise ValueError("`--transfer-times` is for plans without `--machine`, which tells what transfers take")
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
    """How times are written; without a machine, they have no unit."""
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
            stages = ", ".join(stage_letters(stage, part) for stage, part, at in plan.places() if at == ipu.ipu)
            line = f"IPU {ipu.ipu}: stages {stages}; stash {format_bytes(ipu.stash_bytes)}"
            line += f", in all {format_bytes(ipu.on_chip_bytes)}"
            lines.append(line + (f", off the chip {format_bytes(ipu.off_chip_bytes)}" if ipu.off_chip_bytes else ""))
    return "\n".join(lines if cost.peak_bytes else lines[:1])


def _plain(cost: PlanCost | None) -> dict[str, object]:
    """The figures of a plan as JSON has them; of one that cannot be run there are none."""
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
