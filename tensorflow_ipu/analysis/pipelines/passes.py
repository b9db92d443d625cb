"""The costs of a pipeline's stages: predicted for a machine, or measured on the processor."""

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
# TensorFlow prefixes the names of a called function's operations with this.
_CALL = "StatefulPartitionedCall/"
_GRADIENT = re.compile(r"gradients/(.+)_grad/")
_OPTION = "availableMemoryProportion"


@dataclass(frozen=True)
class Passes:
    """The reports on a pipeline's passes, each as a program.

    `proportion` is the `availableMemoryProportion` of all passes; None if they differ. `size` is the size of the
    pipeline's data, as a multiple of their original size: below 1 after `again(halved=True)`.
    """

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
        """Returns the reports for other settings. It has the same arguments as `Report.again`."""
        system = system or self.system

        def read(report: Report) -> Report:
            assert report.again is not None
            return report.again(system=system, proportion=proportion, halved=halved)

        reports = {
            place: {name: read(report) for name, report in of_place.items()} for place, of_place in self.reports.items()
        }
        update = None if self.update is None else read(self.update)
        overlaps = self.overlaps if prefetch is None else system.machine.io_tiles > 0 and prefetch > 1
        changed = replace(self, system=system, reports=reports, update=update, overlaps=overlaps)
        if not halved:
            return changed
        # The arguments of the passes are the data that the pipeline stores between them, so both shrink by one factor.
        after, before = _argument_bytes(reports), _argument_bytes(self.reports)
        size = after / before if before else 1.0
        return replace(changed, size=size, footprint=self.footprint.scaled(size))

    def share(self, place: Place) -> float:
        """Returns a part's share of the weight update, by the number of elements of its gradients."""
        sizes = {key: _elements(specs) for key, specs in self.footprint.accumulators.items()}
        total = sum(sizes.values())
        return sizes[place] / total if total else 0.0


def _argument_bytes(reports: Mapping[Place, Mapping[str, Report]]) -> int:
    return sum(report.memory.variables for of_place in reports.values() for report in of_place.values())


def passes_of(
    pipeline: TracedPipeline,
    target: System | Machine | str | None,
    replica_count: int = 1,
    prefetch: int | None = None,
    trip_counts: Mapping[str, int] | None = None,
) -> Passes:
    """Returns the reports on a pipeline's passes: compiles each pass of each stage as a program, and reads its HLO.

    The backward pass also adds the gradients to their sums. The weight update is one more program, for all stages.
    """
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
        functions, lines = part.passes(), part.lines()
        if "backward" in functions:
            functions["backward"] = _accumulating(part, *functions["backward"], footprint.accumulators[place])
        for name, function_and_specs in functions.items():
            proportion = _proportion(pipeline.options, place[0], name)
            proportions.add(reader.proportion if proportion is None else proportion)
            reports[place][name] = reader.read(f"{part.name} {name}", *function_and_specs, proportion, lines)
    names = {f"{parts[place].name} {name}" for place, of_place in reports.items() for name in of_place}
    unknown = [key for key in counts if key != "*" and not any(key.startswith(f"{name}/") for name in names)]
    if unknown:
        raise ValueError(
            f"`trip_counts` names {', '.join(f'`{key}`' for key in unknown)}: name the pass and the loop, as a report"
            f" without `trip_counts` does, such as `{min(names)}/while`; or give `*` for all loops"
        )
    update = None
    if parts.weight_update is not None:
        proportion = _of_options(pipeline.options.weight_update_poplar_options)
        update = reader.read("update", *parts.weight_update.alone(), proportion, {})
    overlaps = reader.system.machine.io_tiles > 0 and (prefetch is None or prefetch > 1)
    common_proportion = proportions.pop() if len(proportions) == 1 else None
    return Passes(reader.system, replica_count, parts, footprint, reports, update, common_proportion, overlaps)


@dataclass(frozen=True)
class _Reader:
    """The arguments of `report_of` that are the same for all passes of a pipeline."""

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
        """Returns the report on a pass. `lines` are the lines of the user's code, by operation of the stage."""
        with tf.device(self.device):
            concrete = tf.function(function, autograph=False, jit_compile=True).get_concrete_function(*specs)
            zeros = [tf.zeros(spec.shape, spec.dtype) for spec in specs]
        trip_counts = {
            key if key == "*" else _CALL + key.removeprefix(f"{name}/"): count
            for key, count in self.trip_counts.items()
            if key == "*" or key.startswith(f"{name}/")
        }
        try:
            report = report_of(
                programs.hlo(concrete, zeros, self.device),
                self.system,
                program=name,
                replicas=self.replicas,
                proportion=self.proportion if proportion is None else proportion,
                trip_counts=trip_counts,
            )
        except ValueError as exc:
            raise ValueError(str(exc).replace(_CALL, f"{name}/")) from exc
        return _with_names(report, name, lines)


def _with_names(report: Report, name: str, lines: Mapping[str, str]) -> Report:
    """Returns a report on a pass with its rows named as parts of the pipeline. `again` names them too."""
    original = report.again

    def again(**changes: Any) -> Report:
        assert original is not None
        return _with_names(original(**changes), name, lines)

    named = tuple(_named(row, name, lines) for row in report.operations)
    notes = tuple(note.replace(_CALL, f"{name}/") for note in report.assumptions)
    (memory,) = report.memories
    largest = tuple((title.replace(_CALL, ""), size) for title, size in memory.largest)
    return replace(
        report,
        operations=named,
        memories=(replace(memory, largest=largest),),
        assumptions=notes,
        again=None if original is None else again,
    )


def _named(row: OperationTime, name: str, lines: Mapping[str, str]) -> OperationTime:
    """Returns a row named as a part of the pipeline, with the user's line. A gradient has the line of its operation."""
    operation = row.name.rsplit(";", 1)[-1].replace(_CALL, "")
    of_gradient = _GRADIENT.match(operation)
    line = lines.get(of_gradient[1] if of_gradient else operation, "")
    return replace(row, name=f"{name}/{operation}", part=name, source=line)


def _accumulating(
    part: TracedStage, function: _Function, specs: list[tf.TensorSpec], sums: list[tf.TensorSpec]
) -> tuple[_Function, list[tf.TensorSpec]]:
    """Returns a backward pass that adds the gradients of variables to sums. The sums are its first arguments."""
    begin, count = len(part.input_gradients), len(sums)

    def accumulating(*values: tf.Tensor) -> list[tf.Tensor]:
        results = list(function(*values[count:]))
        gradients = results[begin : begin + count]
        totals = [total + tf.cast(gradient, total.dtype) for total, gradient in zip(values, gradients, strict=False)]
        return [*results[:begin], *totals, *results[begin + count :]]

    return accumulating, [*sums, *specs]


def _proportion(options: PipelineOptions, stage: int, name: str) -> float | None:
    """Returns the `availableMemoryProportion` of a pass, or None if the options of its stage set none."""
    lists = options.forward_propagation_stages_poplar_options, options.backward_propagation_stages_poplar_options
    of_stages = lists[name == "backward"]
    return None if of_stages is None else _of_options(of_stages[stage])


def _of_options(options: object) -> float | None:
    """Returns the smallest proportion that options set, or None. The options of concurrent parts are a list."""
    return min(_proportions(options), default=None)


def _proportions(options: object) -> Iterator[float]:
    if isinstance(options, list | tuple):
        for option_set in options:
            yield from _proportions(option_set)
    elif isinstance(options, PipelineStageOptions):
        record = options.get_proto()
        for option in (*record.matmul_options, *record.convolution_options):
            if option.option == _OPTION:
                yield float(option.value)


def _elements(specs: Sequence[tf.TensorSpec]) -> int:
    return sum(spec.shape.num_elements() or 0 for spec in specs)


def measured_stage_costs(pipeline: TracedPipeline, runs: int = 20) -> OfStages[StageCost]:
    """Measures the times of a pipeline's stages on the processor of this computer.

    Each pass of a stage is compiled as a program and runs on zeros. Variables do not change. Times are in milliseconds,
    and are the smallest of `runs` runs. Those of updates, loads and saves are 0. Bytes are those of
    `pipeline.stage_costs`.

    Raises:
      RuntimeError: The program of the pipeline no longer exists.
      ValueError: `runs` is less than 1.
    """
    if not is_int(runs) or runs < 1:
        raise ValueError(f"`runs` must be 1 or more, but is {runs!r}")
    idle = _fastest(lambda: (), [], "", runs)
    return pipeline.parts().figures(lambda part: _measured_cost(part, idle, runs))


def _measured_cost(part: TracedStage, idle: float, runs: int) -> StageCost:
    passes = part.passes().items()
    times = {name: max(0.0, _fastest(function, specs, part.device, runs) - idle) for name, (function, specs) in passes}
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
        values = [tf.zeros(spec.shape, spec.dtype) for spec in specs]
        compiled(*values)
        times = []
        for _ in range(runs):
            begin = time.perf_counter()
            for result in compiled(*values):
                result.numpy()  # Waits for the end of the run.
            times.append(time.perf_counter() - begin)
    return min(times) * 1000


def predicted_stage_costs(
    pipeline: TracedPipeline,
    machine: System | Machine | str | None = None,
    *,
    replicas: int = 1,
) -> OfStages[StageCost]:
    """Predicts the costs of a pipeline's stages on a real machine, in seconds and bytes. Nothing is run.

    The times do not include transfers off the chip. To include them, pass the same machine to `plan_cost` and
    `compare_plans`.

    Args:
      pipeline: The pipeline. Its program must still exist.
      machine: A name such as `"GC200"` or `"Bow Pod16"`, a `machine.Machine` or a `machine.System`; None for the
        machine that `IPUConfig.ipu_model` describes.
      replicas: The number of replicas. Gradients are summed over them, and a sharded optimizer state is divided among
        them.

    Raises:
      RuntimeError: The program of the pipeline no longer exists.
      TypeError: `machine` has another type.
      ValueError: No machine has this name, or `replicas` is less than 1.
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
    on_chip, off_chip = state_of(pipeline, passes, place)
    memory = memory_of_parts([report.memory for report in reports.values()], passes.system.machine)
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
        state_bytes=on_chip,
        off_chip_bytes=off_chip,
        temporary_bytes=memory.data + memory.constants,
        code_bytes=memory.code_low,
        weight_shards=passes.replicas if options.replicated_weight_sharding else 1,
        weights_off_chip=bool(options.offload_weights and options.replicated_weight_sharding),
    )


def state_of(pipeline: TracedPipeline, passes: Passes, place: Place) -> tuple[int, int]:
    """Returns the bytes of the optimizer's slots for a part's weights: on the chip, and off the chip."""
    state = round(passes.footprint.state * passes.share(place))
    options = pipeline.options
    if options.offload_weight_update_variables is not True:
        return state, 0
    return 0, -(-state // passes.replicas) if options.replicated_optimizer_state_sharding else state


def runs_of(plan: Plan, name: str) -> int:
    """Returns how often a forward or backward pass of a stage runs in a run of the program: once per micro-batch.

    The weight update runs once per pass of the whole pipeline.
    """
    return plan.repeat_count * (1 if name == "update" else plan.micro_batches)
