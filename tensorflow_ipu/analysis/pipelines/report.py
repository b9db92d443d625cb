"""What a machine would make of a pipeline: the report of all its IPUs."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tensorflow_ipu.analysis.machine import (
    Memory,
    NotAsked,
    OperationTime,
    Recipe,
    Report,
    Suggestion,
    System,
    TaskTime,
    Timeline,
    advice_of_reading,
    memory_of_parts,
)
from tensorflow_ipu.analysis.machine.search import Effect, Variant, changing, effect_of, recipe_of_reading
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

if TYPE_CHECKING:
    from typing import TypeGuard

Asked = Iterator[Suggestion | NotAsked | Recipe]
_HALVES = ("forward", "update", "activation_bytes", "weight_bytes", "state_bytes", "off_chip_bytes")


class PlanChange(NamedTuple):
    """Another plan of a pipeline; `cut` is a stage that becomes two."""

    schedule: PipelineSchedule
    recomputation: RecomputationMode | None
    micro_batches: int
    cut: int | None = None


@dataclass(frozen=True)
class Planned:
    report: Report
    plan: Plan
    costs: StageCosts
    proportion: float | None
    read: Callable[..., Planned]

    def advice(self) -> Asked:
        yield from advice_of_reading(self.report, lambda **changes: self.read(**changes).report, self.proportion)
        plan = self.plan
        if plan.phased or plan.name == "Sharded" or plan.batch_serialization_iterations > 1:
            why = f"it runs as {plan.name!r}: `compare_plans` costs pipelines of its stages"
            yield NotAsked("recomputation, schedules, stages", why)
            return
        modes = SUPPORTED_MODES[plan.schedule] if plan.training else ()
        recomputing = {_words_of(mode): self._moved(recomputation=mode) for mode in modes}
        if self.report.fits is not True:
            yield from recipe_of_reading(
                self.report, self._evaluate, recomputing if plan.recomputation is None else None
            )
        others = {None: "no recomputation"} | {mode: _words_of(mode) for mode in modes} if plan.training else {}
        for mode, words in others.items():
            if mode is not plan.recomputation:
                yield self._answer(words, recomputation=mode)
        for schedule in PipelineSchedule:
            if schedule is not plan.schedule:
                modes = SUPPORTED_MODES[schedule]
                mode = plan.recomputation if plan.recomputation in (None, *modes) else modes[0]
                yield self._answer(f"`PipelineSchedule.{schedule.name}`", schedule=schedule, recomputation=mode)
        count = 2 * plan.micro_batches
        words = f"`gradient_accumulation_count` of {count} in place of {plan.micro_batches}"
        yield self._answer(words, micro_batches=count)
        yield self._one_more_stage()
        yield NotAsked(
            "other micro-batches",
            "the stages are traced for the shapes of theirs: ask for a report of a program with others",
            of_models=True,
        )

    def _moved(self, **changes: Any) -> Callable[[Variant], Variant | None]:
        plan = self.plan
        return changing(plan=PlanChange(plan.schedule, plan.recomputation, plan.micro_batches)._replace(**changes))

    def _evaluate(self, variant: Variant) -> Effect:
        changes = variant.reading()
        planned = self.read(**changes) if changes else self
        read = planned.report if variant.plan is None else planned._changed(cast("PlanChange", variant.plan))
        return effect_of(self.report, read, variant.state, self.plan.repeat_count)

    def _answer(self, words: str, **changes: Any) -> Suggestion | NotAsked:
        """Returns the effect of another plan, of the next number of micro-batches that its schedule takes."""
        plan = self.plan
        change = PlanChange(plan.schedule, plan.recomputation, plan.micro_batches)._replace(**changes)
        mapping = list(plan.mapping) if change.cut is None else [(ipu,) for ipu in range(plan.stages + 1)]
        if change.schedule is PipelineSchedule.Interleaved and plan.training and len(set(mapping)) < len(mapping):
            return NotAsked(words, "Interleaved trains with one stage an IPU only")
        multiple = overlap_length(change.schedule, mapping, plan.training)
        count = -(-change.micro_batches // multiple) * multiple
        if count != change.micro_batches:
            words += f", and `gradient_accumulation_count` of {count}, a multiple of {multiple}"
        return self._evaluate(Variant(plan=change._replace(micro_batches=count))).as_suggestion(words)

    def _one_more_stage(self) -> Suggestion | NotAsked:
        """Returns the effect of cutting the slowest stage in two equal ones: a program does not tell where it can be cut."""
        plan, costs = self.plan, self.costs
        words = "one more stage"
        if not _are_plain(costs) or len(plan.ipus) < plan.stages:
            return NotAsked(words, "stages have concurrent parts, or share IPUs: `compare_plans` costs other mappings")
        slowest = max(range(plan.stages), key=lambda stage: costs[stage].forward + backward_time(costs[stage]))
        words += f" on an IPU of its own: stage {slowest}, the slowest, cut in two that take equally long"
        return self._answer(f"{words} (a replica then has {power_of_2(plan.stages + 1)} IPUs)", cut=slowest)

    def _changed(self, change: PlanChange) -> Report:
        """Returns the report with another plan: the plans' costs differ as it does."""
        plan, costs, report, timeline = self.plan, self.costs, self.report, self.report.timeline
        mapping: list[Any] = [
            list(ipus) if many else ipus[0] for ipus, many in zip(plan.mapping, plan.concurrent, strict=True)
        ]
        if change.cut is not None:
            assert _are_plain(costs)
            costs = [*costs[: change.cut], *[_half(costs[change.cut])] * 2, *costs[change.cut + 1 :]]
            mapping = list(range(len(costs)))
        other = pipeline_plan(
            len(mapping),
            change.micro_batches,
            change.schedule,
            device_mapping=mapping,
            training=plan.training,
            recomputation_mode=change.recomputation,
            repeat_count=plan.repeat_count,
        ).offloaded(**plan.offloads)
        assert timeline is not None
        before = plan_cost(plan, self.costs, machine=report.system)
        after = plan_cost(other, costs, machine=report.system)
        share = other.micro_batches / plan.micro_batches
        return replace(
            report,
            timeline=replace(
                timeline, seconds=after.time, micro_batches=other.micro_batches, bubble=after.bubble_share
            ),
            operations=tuple(replace(row, host=share * row.host) if row.host else row for row in report.operations),
            memories=tuple(_memories(report.memories, before, after)),
            again=None,
        )


def _words_of(mode: RecomputationMode) -> str:
    return f"recomputation (`RecomputationMode.{mode.name}`)"


def _are_plain(costs: StageCosts) -> TypeGuard[Sequence[StageCost]]:
    """Returns True if each stage has one part."""
    return isinstance(costs, Sequence) and all(isinstance(cost, StageCost) for cost in costs)


def _memories(memories: Sequence[Memory], before: PlanCost, after: PlanCost) -> Iterator[Memory]:
    """Yields the memory of each IPU by another plan. Parts that plans do not know, such as feeds, stay."""
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
    """Returns half of a stage; both halves have the inputs of the whole."""
    halves = {name: getattr(cost, name) / 2 for name in _HALVES}
    backward = None if cost.backward is None else cost.backward / 2
    sums = None if cost.accumulator_bytes is None else cost.accumulator_bytes / 2
    return replace(cost, **halves, backward=backward, accumulator_bytes=sums)


# Of a long plan so many tasks are shown, as far as its ramps allow.
_SHOWN = 600


def report_of_pipeline(
    pipeline: TracedPipeline,
    system: System,
    *,
    program: str,
    replicas: int,
    prefetch: int | None = None,
    trip_counts: Mapping[str, int] | None = None,
) -> Report:
    """Predicts what a machine makes of a pipeline, whose program is still there, from its plan and its passes."""
    passes = passes_of(pipeline, system, replicas, prefetch, trip_counts)

    @functools.lru_cache(maxsize=8)
    def read(**changes: Any) -> Planned:
        found = passes.again(**changes) if changes else passes
        costs = costs_of_passes(pipeline, found)
        return Planned(_report(pipeline, found, program), pipeline.plan, costs, passes.proportion, read)

    def asks(report: Report, retrace: bool) -> Asked:
        del retrace  # There is a program, and nothing to trace it from.
        return replace(read(), report=report).advice()

    return replace(read().report, asks=asks, again=lambda **changes: read(**changes).report)


def _report(pipeline: TracedPipeline, passes: Passes, program: str) -> Report:
    plan = pipeline.plan
    notes = dict.fromkeys(note for report in _reports(passes) for note in report.assumptions)
    costs = costs_of_passes(pipeline, passes)
    prices = Prices(plan, costs, passes.system)
    return Report(
        program=program,
        system=passes.system,
        replicas=passes.replicas,
        operations=(*_operations(pipeline, passes), *_moves(prices, passes, plan)),
        memories=tuple(_memory(pipeline, passes, prices, ipu) for ipu in plan.ipus),
        assumptions=(*notes, "figures are of the pipeline alone: what a program does around it is not counted"),
        overlaps_host=passes.overlaps,
        timeline=_timeline(plan, costs, passes.system),
    )


def _reports(passes: Passes) -> Iterator[Report]:
    for reports in passes.reports.values():
        yield from reports.values()
    if passes.update is not None:
        yield passes.update


def _operations(pipeline: TracedPipeline, passes: Passes) -> Iterator[OperationTime]:
    """Yields the rows of all passes, for all their runs, and those of the queues."""
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


def _rows(report: Report, count: int, ipu: int) -> Iterator[OperationTime]:
    for row in report.operations:
        times = {name: count * getattr(row, name) for name in ("compute", "exchange", "sync", "links", "flops")}
        yield replace(row, count=count * row.count, ipu=ipu, **times)


def _feed(kind: str, size: int, count: int, ipu: int, system: System) -> OperationTime:
    seconds = size / system.host_bytes_per_second
    return OperationTime(kind, kind, f"{size} bytes", count, host=count * seconds, host_bytes=count * size, ipu=ipu)


def _moves(prices: Prices, passes: Passes, plan: Plan) -> Iterator[OperationTime]:
    """Yields the rows of transfers between chips and the memory beside them, and of gathers over links."""
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
        row = OperationTime(f"{part}/{label}", kind, "", count, links=count * seconds)
        yield replace(row, ipu=ipu, part=part)


def _memory(pipeline: TracedPipeline, passes: Passes, prices: Prices, ipu: int) -> Memory:
    plan, footprint, chip = pipeline.plan, passes.footprint, passes.system.machine
    places = [(stage, part) for stage, part, at in plan.places() if at == ipu]

    def size_of(buffer: Buffer) -> float:
        alone = buffer.depth * prices.bytes_in(buffer.kind, buffer.stage, buffer.part)
        return footprint.buffers.get(buffer, alone)

    held = holdings_of(plan, ipu, prices.costs, size_of)
    doubled = 2 if passes.overlaps else 1  # One is passed while the other one is used.
    feeds = doubled * (footprint.element * (ipu in plan.mapping[0]) + footprint.result * (ipu in plan.mapping[-1]))
    kept = Memory(
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
    return memory_of_parts(memories, chip, kept)


def _shared(passes: Passes, places: Sequence[Place], plan: Plan) -> int:
    """Returns the bytes that variables shared by stages of an IPU are counted too often."""
    if plan.phased:
        return 0
    found = {
        id(variable.handle): (variable.shape.num_elements() or 0) * variable.dtype.size
        for place in places
        for variable in passes.parts[place].used_variables
    }
    return sum(passes.parts[place].bytes.weight_bytes for place in places) - sum(found.values())


def _timeline(plan: Plan, costs: StageCosts, system: System) -> Timeline:
    cost = plan_cost(plan, costs, machine=system)
    shown = _shown(plan)
    tasks: list[TaskTime] = []
    for _, begin, end, spans in timeline(shown, costs, machine=system):
        for span in spans:
            kind = type(span.instruction).__name__.lower()
            stage, label = span.instruction.stage, str(span.instruction)
            tasks.append(TaskTime(span.ipu, span.begin, span.end, kind, stage, label))
        computed = max((span.end for span in spans), default=begin)
        if end > computed:
            tasks += [TaskTime(ipu, computed, end, "exchange", -1, "exchange") for ipu in plan.ipus]
    return Timeline(
        seconds=cost.time,
        micro_batches=plan.micro_batches,
        passes=plan.repeat_count,
        bubble=cost.bubble_share,
        shown=shown.micro_batches,
        tasks=tuple(sorted(tasks, key=lambda task: (task.begin, task.ipu))),
    )


def _shown(plan: Plan) -> Plan:
    """Returns the plan with so few micro-batches that all its tasks can be shown, but one iteration at least."""
    steady = plan.section("steady")
    an_iteration = sum(len(step.tasks) for step in steady.steps)
    others = sum(len(step.tasks) for section in plan.sections if section is not steady for step in section.steps)
    iterations = max(1, (_SHOWN - others) // an_iteration) if an_iteration else 1
    if steady.repeat <= iterations:
        return plan
    return plan.with_micro_batches(plan.unlooped_micro_batches + iterations * steady.advance)
