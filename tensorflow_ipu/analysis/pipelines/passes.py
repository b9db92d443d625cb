"""What the stages of a pipeline would take of a machine."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._base.checks import is_int
from tensorflow_ipu.analysis.machine import (
    Machine,
    OperationTime,
    Report,
    System,
    memory_of_parts,
    report_of,
    setting_of,
)
from tensorflow_ipu.analysis.pipelines.cost import StageCost
from tensorflow_ipu.config import _state
from tensorflow_ipu.pipelining.options import PipelineOptions, PipelineStageOptions
from tensorflow_ipu.pipelining.traced_stage import size_of

if TYPE_CHECKING:
    from tensorflow_ipu.pipelining.program import TracedPipeline
    from tensorflow_ipu.pipelining.schedule.plan import Plan
    from tensorflow_ipu.pipelining.stages import Footprint, OfStages, Stages
    from tensorflow_ipu.pipelining.traced_stage import Place, TracedStage

_Function = Callable[..., list[tf.Tensor]]
# How TensorFlow begins the names of what a function does that is called.
_CALL = "StatefulPartitionedCall/"
_GRADIENT = re.compile(r"gradients/(.+)_grad/")
_OPTION = "availableMemoryProportion"


@dataclass(frozen=True)
class Passes:
    """The reports of a pipeline's passes, each alone."""

    system: System
    replicas: int
    parts: Stages
    footprint: Footprint
    reports: dict[Place, dict[str, Report]]
    update: Report | None
    proportion: float | None
    overlaps: bool
    size: float = 1.0

    def again(
        self,
        *,
        system: System | None = None,
        proportion: float | None = None,
        halved: bool = False,
        prefetch: int | None = None,
    ) -> Passes:
        system = system or self.system

        def read(report: Report) -> Report:
            assert report.again is not None
            return report.again(system=system, proportion=proportion, halved=halved)

        reports = {place: {name: read(one) for name, one in of.items()} for place, of in self.reports.items()}
        update = None if self.update is None else read(self.update)
        overlaps = self.overlaps if prefetch is None else system.machine.io_tiles > 0 and prefetch > 1
        made = replace(self, system=system, reports=reports, update=update, overlaps=overlaps)
        if not halved:
            return made
        # What the passes are given is what is kept between them.
        given = [
            sum(one.memory.variables for of in found.values() for one in of.values())
            for found in (reports, self.reports)
        ]
        size = given[0] / given[1] if given[1] else 1.0
        return replace(made, size=size, footprint=self.footprint.scaled(size))

    def share(self, place: Place) -> float:
        """Returns a part's share of the update: that of its gradients."""
        sizes = {each: _elements(specs) for each, specs in self.footprint.accumulators.items()}
        whole = sum(sizes.values())
        return sizes[place] / whole if whole else 0.0


def passes_of(
    pipeline: TracedPipeline,
    target: System | Machine | str | None,
    replica_count: int = 1,
    prefetch: int | None = None,
    trip_counts: Mapping[str, int] | None = None,
) -> Passes:
    parts = pipeline.parts()
    footprint = parts.footprint
    if footprint is None:
        raise RuntimeError("the program of this pipeline was not traced to its end: trace it without an error first")
    device = next((part.device for part in parts.values() if part.device), "/device:IPU:0")
    options = _state.options_of_device(tf.DeviceSpec.from_string(device).device_index or 0)
    counts = dict(trip_counts or {})
    reader = _Reader(*setting_of(target, options), device, replica_count, counts)
    reports: dict[Place, dict[str, Report]] = {}
    proportions: set[float] = set()
    for place, part in parts.items():
        reports[place] = {}
        found, lines = part.passes(), part.lines()
        if "backward" in found:
            found["backward"] = _accumulating(part, *found["backward"], footprint.accumulators[place])
        for name, one in found.items():
            proportion = _proportion(pipeline.options, place[0], name)
            proportions.add(reader.proportion if proportion is None else proportion)
            reports[place][name] = reader.read(f"{part.name} {name}", *one, proportion, lines)
    names = {f"{parts[place].name} {name}" for place, of in reports.items() for name in of}
    strange = [key for key in counts if key != "*" and not any(key.startswith(f"{name}/") for name in names)]
    if strange:
        raise ValueError(
            f"`trip_counts` names {', '.join(f'`{key}`' for key in strange)}: name the pass and the loop, as the report without"
            f" it does, such as `{min(names)}/while`; or give `*` for all loops"
        )
    update = None
    if parts.weight_update is not None:
        proportion = _of_options(pipeline.options.weight_update_poplar_options)
        update = reader.read("update", *parts.weight_update.alone(), proportion, {})
    overlaps = reader.system.machine.io_tiles > 0 and (prefetch is None or prefetch > 1)
    one = proportions.pop() if len(proportions) == 1 else None
    return Passes(reader.system, replica_count, parts, footprint, reports, update, one, overlaps)


@dataclass(frozen=True)
class _Reader:
    """The arguments that are the same for all passes of a pipeline."""

    system: System
    proportion: float
    device: str
    replicas: int
    trip_counts: Mapping[str, int]

    def read(
        self,
        name: str,
        function: _Function,
        specs: Sequence[tf.TensorSpec],
        proportion: float | None,
        lines: Mapping[str, str],
    ) -> Report:
        """Returns the report of a pass. `lines` are those of the user's code, by operations of its stage."""
        with tf.device(self.device):
            concrete = tf.function(function, autograph=False, jit_compile=True).get_concrete_function(*specs)
            zeros = [tf.zeros(one.shape, one.dtype) for one in specs]
        own = {
            key if key == "*" else _CALL + key.removeprefix(f"{name}/"): count
            for key, count in self.trip_counts.items()
            if key == "*" or key.startswith(f"{name}/")
        }
        try:
            made = report_of(
                programs.hlo(concrete, zeros, self.device),
                self.system,
                program=name,
                replicas=self.replicas,
                proportion=self.proportion if proportion is None else proportion,
                trip_counts=own,
            )
        except ValueError as exc:
            raise ValueError(str(exc).replace(_CALL, f"{name}/")) from exc
        return _with_names(made, name, lines)


def _with_names(report: Report, name: str, lines: Mapping[str, str]) -> Report:
    """Returns a report on a pass with its rows named as parts of the pipeline, also when it is read again."""
    plain = report.again

    def again(**changes: Any) -> Report:
        assert plain is not None
        return _with_names(plain(**changes), name, lines)

    named = tuple(_named(row, name, lines) for row in report.operations)
    notes = tuple(note.replace(_CALL, f"{name}/") for note in report.assumptions)
    (memory,) = report.memories
    largest = tuple((each.replace(_CALL, ""), size) for each, size in memory.largest)
    return replace(
        report,
        operations=named,
        memories=(replace(memory, largest=largest),),
        assumptions=notes,
        again=None if plain is None else again,
    )


def _named(row: OperationTime, name: str, lines: Mapping[str, str]) -> OperationTime:
    """Returns a row named as a part of the pipeline, with the line of the stage's operation that it belongs to."""
    operation = row.name.rsplit(";", 1)[-1].replace(_CALL, "")
    of_gradient = _GRADIENT.match(operation)
    line = lines.get(of_gradient[1] if of_gradient else operation, "")
    return replace(row, name=f"{name}/{operation}", part=name, source=line)


def _accumulating(
    part: TracedStage, function: _Function, specs: list[tf.TensorSpec], sums: list[tf.TensorSpec]
) -> tuple[_Function, list[tf.TensorSpec]]:
    """Returns a backward pass that adds the gradients of variables to sums, which are its first arguments."""
    begin, count = len(part.input_gradients), len(sums)

    def accumulating(*values: tf.Tensor) -> list[tf.Tensor]:
        found = list(function(*values[count:]))
        gradients = found[begin : begin + count]
        added = [total + tf.cast(one, total.dtype) for total, one in zip(values, gradients, strict=False)]
        return [*found[:begin], *added, *found[begin + count :]]

    return accumulating, [*sums, *specs]


def _proportion(options: PipelineOptions, stage: int, name: str) -> float | None:
    """Returns the share of memory for products of a pass, if the options of its stage set one."""
    lists = options.forward_propagation_stages_poplar_options, options.backward_propagation_stages_poplar_options
    of_stages = lists[name == "backward"]
    return None if of_stages is None else _of_options(of_stages[stage])


def _of_options(options: object) -> float | None:
    """Returns the least proportion of options; those of parts are a list."""
    return min(_proportions(options), default=None)


def _proportions(options: object) -> Iterator[float]:
    if isinstance(options, list | tuple):
        for each in options:
            yield from _proportions(each)
    elif isinstance(options, PipelineStageOptions):
        record = options.get_proto()
        for option in (*record.matmul_options, *record.convolution_options):
            if option.option == _OPTION:
                yield float(option.value)


def _elements(specs: Sequence[tf.TensorSpec]) -> int:
    return sum(one.shape.num_elements() or 0 for one in specs)


def measured_stage_costs(pipeline: TracedPipeline, runs: int = 20) -> OfStages[StageCost]:
    """Times the stages of a pipeline on this machine's processor, each compiled alone, on zeros; variables stay as they are.

    The fastest of `runs` counts. Times are in milliseconds, 0 for updates, loads and saves; bytes as in
    `pipeline.stage_costs`.

    Raises:
      RuntimeError: The program of the pipeline is gone.
      ValueError: `runs` is less than 1.
    """
    if not is_int(runs) or runs < 1:
        raise ValueError(f"`runs` must be 1 or more, but is {runs!r}")
    idle = _fastest(lambda: (), [], "", runs)
    return pipeline.parts().figures(lambda part: _measured_cost(part, idle, runs))


def _measured_cost(part: TracedStage, idle: float, runs: int) -> StageCost:
    passes = part.passes().items()
    times = {name: max(0.0, _fastest(*one, part.device, runs) - idle) for name, one in passes}
    forward = times["forward"]
    return replace(
        part.bytes.cost(),
        forward=forward,
        backward=times.get("backward", 0.0),
        recompute_factor=times["recompute"] / forward if forward and "recompute" in times else 1.0,
        update=0.0,
        load=0.0,
        save=0.0,
    )


def _fastest(
    function: Callable[..., Sequence[tf.Tensor]], specs: Sequence[tf.TensorSpec], device: str, runs: int
) -> float:
    compiled = tf.function(function, jit_compile=True, autograph=False)
    with tf.device(device or None):
        values = [tf.zeros(one.shape, one.dtype) for one in specs]
        compiled(*values)
        times = []
        for _ in range(runs):
            begin = time.perf_counter()
            for one in compiled(*values):
                one.numpy()  # All is done.
            times.append(time.perf_counter() - begin)
    return min(times) * 1000


def predicted_stage_costs(
    pipeline: TracedPipeline,
    machine: System | Machine | str | None = None,
    *,
    replicas: int = 1,
) -> OfStages[StageCost]:
    """Predicts what the stages of a pipeline would take of a real machine, in seconds and bytes; nothing is run.

    Transfers off the chip are not in the times: give `plan_cost` and `compare_plans` the same machine.

    Args:
      pipeline: The pipeline, whose program is still there.
      machine: A name such as `"GC200"` or `"Bow Pod16"`, a `machine.Machine`, a `machine.System`; None for the one that
        `IPUConfig.ipu_model` describes.
      replicas: How many replicas run the pipeline: among so many gradients are summed, and a sharded state is divided.

    Raises:
      RuntimeError: The program is gone.
      TypeError: `machine` is none of the above.
      ValueError: There is no such machine, or `replicas` is less than 1.
    """
    if not is_int(replicas) or replicas < 1:
        raise ValueError(f"`replicas` must be 1 or more, but is {replicas!r}")
    return costs_of_passes(pipeline, passes_of(pipeline, machine, replicas))


def costs_of_passes(pipeline: TracedPipeline, passes: Passes) -> OfStages[StageCost]:
    places = {id(part): place for place, part in passes.parts.items()}
    return passes.parts.figures(lambda part: _cost(pipeline, passes, places[id(part)], part.bytes.cost()))


def _cost(pipeline: TracedPipeline, passes: Passes, place: Place, traced: StageCost) -> StageCost:
    reports = passes.reports[place]
    times = {name: report.seconds for name, report in reports.items()}
    options = pipeline.options
    share = passes.share(place)
    state, away = state_of(pipeline, passes, place)
    alone = memory_of_parts([report.memory for report in reports.values()], passes.system.machine)
    return replace(
        traced,
        activation_bytes=passes.size * traced.activation_bytes,
        input_bytes=passes.size * traced.input_bytes,
        weight_bytes=passes.size * traced.weight_bytes,
        forward=times["forward"],
        backward=times.get("backward", 0.0),
        recompute_factor=times["recompute"] / times["forward"] if times["forward"] and "recompute" in times else 1.0,
        update=passes.update.seconds * share if passes.update else 0.0,
        load=0.0,
        save=0.0,
        accumulator_bytes=passes.size * size_of(passes.footprint.accumulators[place]),
        state_bytes=state,
        off_chip_bytes=away,
        temporary_bytes=alone.data + alone.constants,
        code_bytes=alone.code_low,
        weight_shards=passes.replicas if options.replicated_weight_sharding else 1,
        weights_off_chip=bool(options.offload_weights and options.replicated_weight_sharding),
    )


def state_of(pipeline: TracedPipeline, passes: Passes, place: Place) -> tuple[int, int]:
    """Returns the bytes of the optimizer's state for a part's weights: on the chip, and beside it."""
    state = round(passes.footprint.state * passes.share(place))
    options = pipeline.options
    if options.offload_weight_update_variables is not True:
        return state, 0
    return 0, -(-state // passes.replicas) if options.replicated_optimizer_state_sharding else state


def runs_of(plan: Plan, name: str) -> int:
    """Returns the number of runs of a pass: one a micro-batch, in all passes of the plan."""
    return plan.repeat_count * (1 if name == "update" else plan.micro_batches)
