"""What a machine would make of a pipeline: the report of all its IPUs."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensorflow_ipu.analysis import machine
from tensorflow_ipu.analysis.machine import Memory, NotAsked, Recipe, Report, Suggestion, advice_of_reading, changed
from tensorflow_ipu.analysis.machine.recipe import recipe_of_reading
from tensorflow_ipu.analysis.pipelines.cost import (
    PlanCost,
    Prices,
    StageCost,
    StageCosts,
    backward_time,
    holdings_of,
    plan_cost,
    timeline,
)
from tensorflow_ipu.analysis.pipelines.passes import Passes, costs_of_passes, passes_of, runs_of
from tensorflow_ipu.pipelining.program import TracedPipeline
from tensorflow_ipu.pipelining.schedule.enums import PipelineSchedule, RecomputationMode
from tensorflow_ipu.pipelining.schedule.pipelined import overlap_length, pipeline_plan
from tensorflow_ipu.pipelining.schedule.plan import Buffer, Load, Plan, Save
from tensorflow_ipu.pipelining.schedule.plan_arguments import SUPPORTED_MODES
from tensorflow_ipu.pipelining.traced_stage import Place
from tensorflow_ipu.programs import power_of_2

Asked = Iterator[Suggestion | NotAsked | Recipe]
_HALVES = ("forward", "update", "activation_bytes", "weight_bytes", "state_bytes", "off_chip_bytes")


@dataclass(frozen=True)
class Planned:
    """A pipeline with what its stages cost, for advice on other plans."""

    report: Report
    plan: Plan
    costs: StageCosts
    again: Callable[..., Report]
    proportion: float | None
    read: Callable[..., Planned]

    def advice(self) -> Asked:
        """All of it."""
        yield from advice_of_reading(self.report, self.again, self.proportion)
        plan = self.plan
        if plan.phased or plan.name == "Sharded" or plan.batch_serialization_iterations > 1:
            why = f"it runs as {plan.name!r}: `compare_plans` costs pipelines of its stages"
            yield NotAsked("recomputation, schedules, stages", why)
            return
        if self.report.fits is not True:
            yield from filter(None, [self._recipe()])
        yield from self._modes()
        yield from self._schedules()
        count = 2 * plan.micro_batches
        words = f"`gradient_accumulation_count` of {count} in place of {plan.micro_batches}"
        yield from self._asked(words, mode=plan.recomputation, micro_batches=count)
        yield from self._one_more_stage()
        yield NotAsked(
            "other micro-batches",
            "the stages are traced for the shapes of theirs: ask for a report of a program with others",
            of_models=True,
        )

    def _recipe(self) -> Recipe | None:
        """What helps together: what reading the passes again tells, of stages that recompute or not."""
        plan = self.plan
        wanted = SUPPORTED_MODES[plan.schedule] if plan.training and plan.recomputation is None else ()
        modes = {f"recomputation (`RecomputationMode.{mode.name}`)": mode for mode in wanted}

        def again(plan: str = "", **changes: Any) -> Report:
            planned = self.read(**changes)
            return planned._as(modes[plan]) if plan else planned.report

        return recipe_of_reading(self.report, again, plan.repeat_count, modes)

    def _as(self, mode: RecomputationMode) -> Report:
        plan = self.plan
        return self._with(self._planned(self._mapping(), plan.micro_batches, plan.schedule, mode), self.costs)

    def _mapping(self) -> list[Any]:
        plan = self.plan
        return [list(ipus) if many else ipus[0] for ipus, many in zip(plan.mapping, plan.concurrent, strict=True)]

    def _planned(
        self, mapping: list[Any], count: int, schedule: PipelineSchedule, mode: RecomputationMode | None
    ) -> Plan:
        """The plan of so many micro-batches, by another schedule or with other recomputation."""
        return pipeline_plan(
            len(mapping),
            count,
            schedule,
            device_mapping=mapping,
            training=self.plan.training,
            recomputation_mode=mode,
            repeat_count=self.plan.repeat_count,
        ).offloaded(**self.plan.offloads)

    def _modes(self) -> Asked:
        """Other recomputation."""
        plan = self.plan
        if not plan.training:
            return
        for mode in (None, *SUPPORTED_MODES[plan.schedule]):
            if mode is not plan.recomputation:
                words = "no recomputation" if mode is None else f"recomputation (`RecomputationMode.{mode.name}`)"
                yield from self._asked(words, mode=mode)

    def _schedules(self) -> Asked:
        """Other schedules, with the recomputation that there is, or the one that they have."""
        plan = self.plan
        for schedule in PipelineSchedule:
            if schedule is plan.schedule:
                continue
            modes = SUPPORTED_MODES[schedule]
            mode = plan.recomputation if plan.recomputation in (None, *modes) else modes[0]
            yield from self._asked(f"`PipelineSchedule.{schedule.name}`", schedule=schedule, mode=mode)

    def _one_more_stage(self) -> Asked:
        """The slowest stage, cut in two that are equal: a program does not say where it could really be cut."""
        plan, costs = self.plan, self._flat_costs()
        words = "one more stage"
        if costs is None or len(plan.ipus) < plan.stages:
            yield NotAsked(words, "stages have concurrent parts, or share IPUs: `compare_plans` costs other mappings")
            return
        slowest = max(range(plan.stages), key=lambda stage: costs[stage].forward + backward_time(costs[stage]))
        halves = [_half(costs[slowest])] * 2
        more = [*costs[:slowest], *halves, *costs[slowest + 1 :]]
        words += f" on an IPU of its own: stage {slowest}, the slowest, cut in two that take equally long"
        words += f" (a replica then has {power_of_2(len(more))} IPUs)"
        yield from self._asked(words, mode=plan.recomputation, costs=more)

    def _flat_costs(self) -> list[StageCost] | None:
        if not isinstance(self.costs, Sequence):
            return None
        found = [cost for cost in self.costs if isinstance(cost, StageCost)]
        return found if len(found) == len(self.costs) else None

    def _asked(
        self,
        words: str,
        *,
        schedule: PipelineSchedule | None = None,
        mode: RecomputationMode | None,
        micro_batches: int | None = None,
        costs: list[StageCost] | None = None,
    ) -> Asked:
        """What another plan does, of the next number of micro-batches that its schedule takes."""
        plan = self.plan
        schedule = plan.schedule if schedule is None else schedule
        mapping = self._mapping() if costs is None else list(range(len(costs)))
        ipus = [tuple(each) if isinstance(each, list) else (each,) for each in mapping]
        if schedule is PipelineSchedule.Interleaved and plan.training and len(set(ipus)) < len(ipus):
            yield NotAsked(words, "Interleaved trains with one stage an IPU only")
            return
        wanted = micro_batches or plan.micro_batches
        multiple = overlap_length(schedule, ipus, plan.training)
        count = -(-wanted // multiple) * multiple
        if count != wanted:
            words += f", and `gradient_accumulation_count` of {count}, a multiple of {multiple}"
        other = self._planned(mapping, count, schedule, mode)
        yield changed(words, self.report, self._with(other, self.costs if costs is None else costs))

    def _with(self, plan: Plan, costs: StageCosts) -> Report:
        """The report with another plan of stages that cost so much: what differs between the plans' costs differs in it."""
        report, timeline = self.report, self.report.timeline
        assert timeline is not None
        before = plan_cost(self.plan, self.costs, machine=report.system)
        after = plan_cost(plan, costs, machine=report.system)
        share = plan.micro_batches / self.plan.micro_batches
        return replace(
            report,
            timeline=replace(timeline, seconds=after.time, micro_batches=plan.micro_batches, bubble=after.bubble_share),
            operations=tuple(replace(row, host=share * row.host) if row.host else row for row in report.operations),
            memories=tuple(_memories(report.memories, before, after)),
            again=None,
        )


def _memories(memories: Sequence[Memory], before: PlanCost, after: PlanCost) -> Iterator[Memory]:
    """The memory of each IPU, where plans cost so much; what no plan knows, such as feeds, stays as it is."""
    told = {memory.ipu: memory for memory in memories}
    was = {cost.ipu: cost.on_chip_bytes for cost in before.ipus}
    for cost in after.ipus:
        like = cost.ipu if cost.ipu in told else max(told)  # One more IPU has what its neighbour has besides.
        less = was[like] - cost.on_chip_bytes
        memory = told[like]
        stash = max(0, round(memory.stash - less))
        rest = round(memory.stash - less) - stash  # More than the stash has gone.
        yield replace(memory, ipu=cost.ipu, stash=stash, variables=max(0, memory.variables + rest))


def _half(cost: StageCost) -> StageCost:
    """Half of a stage, of which each half gets what the whole gets."""
    halves = {name: getattr(cost, name) / 2 for name in _HALVES}
    backward = None if cost.backward is None else cost.backward / 2
    sums = None if cost.accumulator_bytes is None else cost.accumulator_bytes / 2
    return replace(cost, **halves, backward=backward, accumulator_bytes=sums)


# Of a long plan so many tasks are shown, as far as its ramps allow.
_SHOWN = 600


def report_of_pipeline(
    pipeline: TracedPipeline,
    system: machine.System,
    *,
    program: str,
    replicas: int,
    prefetch: int | None = None,
    trip_counts: Mapping[str, int] | None = None,
) -> machine.Report:
    """Predicts what a machine makes of a pipeline, whose program is still there, from its plan and its passes."""
    passes = passes_of(pipeline, system, replicas, prefetch, trip_counts)
    report = _report(pipeline, passes, program)

    def again(**changes: Any) -> machine.Report:
        return _report(pipeline, passes.again(**changes), program)

    @functools.lru_cache(maxsize=8)
    def read(**changes: Any) -> Planned:
        found = passes.again(**changes)
        costs = costs_of_passes(pipeline, found)
        return Planned(_report(pipeline, found, program), pipeline.plan, costs, again, passes.proportion, read)

    def asks(of: machine.Report, retrace: bool) -> Asked:
        del retrace  # There is a program, and nothing to trace it from.
        return dataclasses.replace(read(), report=of).advice()

    return replace(report, asks=asks, again=again)


def _report(pipeline: TracedPipeline, passes: Passes, program: str) -> machine.Report:
    """What the passes say of the pipeline."""
    plan = pipeline.plan
    notes = dict.fromkeys(note for report in _reports(passes) for note in report.assumptions)
    costs = costs_of_passes(pipeline, passes)
    prices = Prices(plan, costs, passes.system)
    return machine.Report(
        program=program,
        system=passes.system,
        replicas=passes.replicas,
        operations=(*_operations(pipeline, passes), *_moves(prices, passes, plan)),
        memories=tuple(_memory(pipeline, passes, prices, ipu) for ipu in plan.ipus),
        assumptions=(*notes, "figures are of the pipeline alone: what a program does around it is not counted"),
        overlaps_host=passes.overlaps,
        timeline=_timeline(plan, costs, passes.system),
    )


def _reports(passes: Passes) -> Iterator[machine.Report]:
    for reports in passes.reports.values():
        yield from reports.values()
    if passes.update is not None:
        yield passes.update


def _operations(pipeline: TracedPipeline, passes: Passes) -> Iterator[machine.OperationTime]:
    """The rows of all passes, each for all its runs, and those of the queues."""
    plan = pipeline.plan
    last = plan.stages - 1
    footprint = passes.footprint
    if footprint.element:
        yield _feed("infeed", footprint.element, runs_of(plan, "forward"), plan.mapping[0][0], passes.system)
    for stage, part, ipu in plan.places():
        for name, report in passes.reports[stage, part].items():
            yield from _rows(report, runs_of(plan, name), ipu)
    if footprint.result:
        count = runs_of(plan, "update" if footprint.once else "forward")
        yield _feed("outfeed", footprint.result, count, plan.mapping[last][0], passes.system)
    if passes.update is not None:
        yield from _rows(passes.update, runs_of(plan, "update"), -1)


def _rows(report: machine.Report, count: int, ipu: int) -> Iterator[machine.OperationTime]:
    for row in report.operations:
        times = {name: count * getattr(row, name) for name in ("compute", "exchange", "sync", "links", "flops")}
        yield replace(row, count=count * row.count, ipu=ipu, **times)


def _feed(kind: str, size: int, count: int, ipu: int, system: machine.System) -> machine.OperationTime:
    seconds = size / system.host_bytes_per_second
    return machine.OperationTime(
        kind, kind, f"{size} bytes", count, host=count * seconds, host_bytes=count * size, ipu=ipu
    )


def _moves(prices: Prices, passes: Passes, plan: Plan) -> Iterator[machine.OperationTime]:
    """The rows of what comes and goes between a chip and the memory beside it, or is gathered over links."""
    counts: Counter[tuple[str, int, str, str, float]] = Counter()
    for section in plan.sections:
        for task in (task for step in section.steps for task in step.tasks):
            instruction = task.instruction
            moved = instruction.computation if isinstance(instruction, Load | Save) else instruction
            name = passes.parts[moved.stage, moved.part].name
            part = f"{name} {type(moved).__name__.lower()}"
            what = "streaming" if moved is instruction else type(instruction).__name__.lower()
            for kind, label, seconds in (
                ("streaming", what, prices.of(instruction).streamed),
                ("all-gather", "all-gather", prices.of(instruction).gathered),
            ):
                if seconds:
                    counts[part, task.ipu, kind, label, seconds] += section.repeat * plan.repeat_count
    for (part, ipu, kind, label, seconds), count in counts.items():
        row = machine.OperationTime(f"{part}/{label}", kind, "", count, links=count * seconds)
        yield replace(row, ipu=ipu, part=part)


def _memory(pipeline: TracedPipeline, passes: Passes, prices: Prices, ipu: int) -> machine.Memory:
    plan, footprint, chip = pipeline.plan, passes.footprint, passes.system.machine
    places = [(stage, part) for stage, part, at in plan.places() if at == ipu]

    def size_of(buffer: Buffer) -> float:
        alone = buffer.depth * prices.bytes_in(buffer.kind, buffer.stage, buffer.part)
        return footprint.buffers.get(buffer, alone)

    held = holdings_of(plan, ipu, prices.costs, size_of)
    doubled = 2 if passes.overlaps else 1  # One is passed while the other one is used.
    feeds = doubled * (footprint.element * (ipu in plan.mapping[0]) + footprint.result * (ipu in plan.mapping[-1]))
    kept = machine.Memory(
        ipu=ipu,
        variables=round(held.weights - passes.size * _shared(passes, places, plan)),
        optimizer=round(held.state),
        accumulators=round(held.accumulators),
        stash=round(held.stash + held.links),
        feeds=feeds,
        off_chip=round(held.off_chip),
        constants=0,
        data=0,
        code_low=0,
        code_high=0,
        capacity=chip.bytes,
    )
    memories = [report.memory for place in places for report in passes.reports[place].values()]
    if passes.update is not None:
        share = sum(passes.share(place) for place in places)
        whole = passes.update.memory
        data = round(share * whole.data)
        # Its values are of all stages together: which of them are whose is not known.
        largest = (("values of the weight update", data),) if data else ()
        liveness = tuple((at, round(share * size)) for at, size in whole.liveness)
        memories.append(replace(whole, data=data, largest=largest, liveness=liveness))
    return machine.memory_of_parts(memories, chip, kept)


def _shared(passes: Passes, places: Sequence[Place], plan: Plan) -> int:
    """The bytes of variables that several stages of an IPU share, as often as they count too much."""
    if plan.phased:
        return 0
    found = {
        id(variable.handle): (variable.shape.num_elements() or 0) * variable.dtype.size
        for place in places
        for variable in passes.parts[place].used_variables
    }
    return sum(passes.parts[place].bytes.weight_bytes for place in places) - sum(found.values())


def _timeline(plan: Plan, costs: StageCosts, system: machine.System) -> machine.Timeline:
    cost = plan_cost(plan, costs, machine=system)
    shown = _shown(plan)
    tasks: list[machine.TaskTime] = []
    for _, begin, end, spans in timeline(shown, costs, machine=system):
        for span in spans:
            kind = type(span.instruction).__name__.lower()
            stage, label = span.instruction.stage, str(span.instruction)
            tasks.append(machine.TaskTime(span.ipu, span.begin, span.end, kind, stage, label))
        computed = max((span.end for span in spans), default=begin)
        if end > computed:
            tasks += [machine.TaskTime(ipu, computed, end, "exchange", -1, "exchange") for ipu in plan.ipus]
    return machine.Timeline(
        seconds=cost.time,
        micro_batches=plan.micro_batches,
        passes=plan.repeat_count,
        bubble=cost.bubble_share,
        shown=shown.micro_batches,
        tasks=tuple(sorted(tasks, key=lambda task: (task.begin, task.ipu))),
    )


def _shown(plan: Plan) -> Plan:
    """The plan, with so few micro-batches that all its tasks can be shown; with one iteration at least."""
    steady = plan.section("steady")
    an_iteration = sum(len(step.tasks) for step in steady.steps)
    others = sum(len(step.tasks) for section in plan.sections if section is not steady for step in section.steps)
    iterations = max(1, (_SHOWN - others) // an_iteration) if an_iteration else 1
    if steady.repeat <= iterations:
        return plan
    return plan.with_micro_batches(plan.unlooped_micro_batches + iterations * steady.advance)
