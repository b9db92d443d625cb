"""The report on a pipeline, from its plan and the reports on its passes; and advice on other plans."""

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
    """Another plan of a pipeline. `cut` is the stage that is cut in two, if any."""

    schedule: PipelineSchedule
    recomputation: RecomputationMode | None
    micro_batches: int
    cut: int | None = None


@dataclass(frozen=True)
class Planned:
    """A pipeline's report, and the plan and costs that it is made from. `read` returns a new one for other settings."""

    report: Report
    plan: Plan
    costs: StageCosts
    proportion: float | None
    read: Callable[..., Planned]

    def advice(self) -> Asked:
        yield from advice_of_reading(self.report, lambda **changes: self.read(**changes).report, self.proportion)
        plan = self.plan
        if plan.phased or plan.name == "Sharded" or plan.batch_serialization_iterations > 1:
            reason = f"it runs as {plan.name!r}; `compare_plans` costs pipelines of its stages"
            yield NotAsked("recomputation, schedules, stages", reason)
            return
        modes = SUPPORTED_MODES[plan.schedule] if plan.training else ()
        recomputing = {_text_of(mode): self._plan_move(recomputation=mode) for mode in modes}
        if self.report.fits is not True:
            yield from recipe_of_reading(
                self.report, self._evaluate, recomputing if plan.recomputation is None else None
            )
        texts = {None: "no recomputation"} | {mode: _text_of(mode) for mode in modes} if plan.training else {}
        for mode, text in texts.items():
            if mode is not plan.recomputation:
                yield self._suggestion(text, recomputation=mode)
        for schedule in PipelineSchedule:
            if schedule is not plan.schedule:
                modes = SUPPORTED_MODES[schedule]
                mode = plan.recomputation if plan.recomputation in (None, *modes) else modes[0]
                yield self._suggestion(f"`PipelineSchedule.{schedule.name}`", schedule=schedule, recomputation=mode)
        count = 2 * plan.micro_batches
        text = f"`gradient_accumulation_count` of {count} in place of {plan.micro_batches}"
        yield self._suggestion(text, micro_batches=count)
        yield self._one_more_stage()
        yield NotAsked(
            "other micro-batches",
            "the stages are traced for micro-batches of this shape: report on a program with other micro-batches",
            of_models=True,
        )

    def _plan_move(self, **changes: Any) -> Callable[[Variant], Variant | None]:
        plan = self.plan
        return changing(plan=PlanChange(plan.schedule, plan.recomputation, plan.micro_batches)._replace(**changes))

    def _evaluate(self, variant: Variant) -> Effect:
        changes = variant.reading()
        planned = self.read(**changes) if changes else self
        report = planned.report if variant.plan is None else planned._changed(cast("PlanChange", variant.plan))
        return effect_of(self.report, report, variant.state, self.plan.repeat_count)

    def _suggestion(self, text: str, **changes: Any) -> Suggestion | NotAsked:
        """Returns the effect of another plan.

        The number of micro-batches is rounded up to one that its schedule supports.
        """
        plan = self.plan
        change = PlanChange(plan.schedule, plan.recomputation, plan.micro_batches)._replace(**changes)
        mapping = list(plan.mapping) if change.cut is None else [(ipu,) for ipu in range(plan.stages + 1)]
        if change.schedule is PipelineSchedule.Interleaved and plan.training and len(set(mapping)) < len(mapping):
            return NotAsked(text, "Interleaved trains with one stage an IPU only")
        multiple = overlap_length(change.schedule, mapping, plan.training)
        count = -(-change.micro_batches // multiple) * multiple
        if count != change.micro_batches:
            text += f", and `gradient_accumulation_count` of {count}, a multiple of {multiple}"
        return self._evaluate(Variant(plan=change._replace(micro_batches=count))).as_suggestion(text)

    def _one_more_stage(self) -> Suggestion | NotAsked:
        """Returns the effect of cutting the slowest stage into two equal halves.

        The report does not know where the program can be cut, so this is the best case.
        """
        plan, costs = self.plan, self.costs
        text = "one more stage"
        if not _have_no_parts(costs) or len(plan.ipus) < plan.stages:
            return NotAsked(text, "stages have concurrent parts, or share IPUs; `compare_plans` costs other mappings")
        slowest = max(range(plan.stages), key=lambda stage: costs[stage].forward + backward_time(costs[stage]))
        text += f" on another IPU: stage {slowest}, the slowest, is cut into two that take equally long"
        return self._suggestion(f"{text} (a replica then has {power_of_2(plan.stages + 1)} IPUs)", cut=slowest)

    def _changed(self, change: PlanChange) -> Report:
        """Returns the report for another plan, by the difference of the two plans' costs."""
        plan, costs, report, timeline = self.plan, self.costs, self.report, self.report.timeline
        mapping: list[Any] = [
            list(ipus) if concurrent else ipus[0]
            for ipus, concurrent in zip(plan.mapping, plan.concurrent, strict=True)
        ]
        if change.cut is not None:
            assert _have_no_parts(costs)
            costs = [*costs[: change.cut], *[_half(costs[change.cut])] * 2, *costs[change.cut + 1 :]]
            mapping = list(range(len(costs)))
        new_plan = pipeline_plan(
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
        after = plan_cost(new_plan, costs, machine=report.system)
        share = new_plan.micro_batches / plan.micro_batches
        return replace(
            report,
            timeline=replace(
                timeline, seconds=after.time, micro_batches=new_plan.micro_batches, bubble=after.bubble_share
            ),
            operations=tuple(replace(row, host=share * row.host) if row.host else row for row in report.operations),
            memories=tuple(_memories(report.memories, before, after)),
            again=None,
        )


def _text_of(mode: RecomputationMode) -> str:
    return f"recomputation (`RecomputationMode.{mode.name}`)"


def _have_no_parts(costs: StageCosts) -> TypeGuard[Sequence[StageCost]]:
    """Returns True if no stage has concurrent parts."""
    return isinstance(costs, Sequence) and all(isinstance(cost, StageCost) for cost in costs)


def _memories(memories: Sequence[Memory], before: PlanCost, after: PlanCost) -> Iterator[Memory]:
    """Yields the memory of each IPU for another plan. Data that plans do not model, such as feeds, do not change."""
    reported = {memory.ipu: memory for memory in memories}
    bytes_before = {cost.ipu: cost.on_chip_bytes for cost in before.ipus}
    for cost in after.ipus:
        # An additional IPU gets the data that plans do not model from its neighbour.
        template = cost.ipu if cost.ipu in reported else max(reported)
        saved = bytes_before[template] - cost.on_chip_bytes
        memory = reported[template]
        stash = max(0, round(memory.stash - saved))
        excess = round(memory.stash - saved) - stash  # Below 0 if more is saved than the stash had.
        yield replace(memory, ipu=cost.ipu, stash=stash, variables=max(0, memory.variables + excess))


def _half(cost: StageCost) -> StageCost:
    """Returns the cost of one half of a stage. Both halves have inputs of the same size as the stage."""
    halves = {name: getattr(cost, name) / 2 for name in _HALVES}
    backward = None if cost.backward is None else cost.backward / 2
    sums = None if cost.accumulator_bytes is None else cost.accumulator_bytes / 2
    return replace(cost, **halves, backward=backward, accumulator_bytes=sums)


# The number of tasks that the timeline of a long plan shows, as far as its ramps allow.
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
    """Predicts the time and memory of a pipeline on a machine, from its plan and its passes.

    Its program must still exist.
    """
    passes = passes_of(pipeline, system, replicas, prefetch, trip_counts)

    @functools.lru_cache(maxsize=8)
    def read(**changes: Any) -> Planned:
        changed = passes.again(**changes) if changes else passes
        costs = costs_of_passes(pipeline, changed)
        return Planned(_report(pipeline, changed, program), pipeline.plan, costs, passes.proportion, read)

    def asks(report: Report, retrace: bool) -> Asked:
        del retrace  # A compiled program cannot be traced again.
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
        assumptions=(*notes, "only the pipeline is counted, without the parts of the program around it"),
        overlaps_host=passes.overlaps,
        timeline=_timeline(plan, costs, passes.system),
    )


def _reports(passes: Passes) -> Iterator[Report]:
    for reports in passes.reports.values():
        yield from reports.values()
    if passes.update is not None:
        yield passes.update


def _operations(pipeline: TracedPipeline, passes: Passes) -> Iterator[OperationTime]:
    """Yields the rows of the queues and of all passes, each for all its executions in a run."""
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
    """Yields the rows of transfers between the chips and the memory off them, and of gathers over links."""
    counts: Counter[tuple[str, int, str, str, float]] = Counter()
    for section in plan.sections:
        for task in (task for step in section.steps for task in step.tasks):
            instruction = task.instruction
            moved = instruction.computation if isinstance(instruction, Load | Save) else instruction
            name = passes.parts[moved.stage, moved.part].name
            part = f"{name} {type(moved).__name__.lower()}"
            transfer = "streaming" if moved is instruction else type(instruction).__name__.lower()
            for kind, label, seconds in (
                ("streaming", transfer, prices.of(instruction).streamed),
                ("all-gather", "all-gather", prices.of(instruction).gathered),
            ):
                if seconds:
                    counts[part, task.ipu, kind, label, seconds] += section.repeat * plan.repeat_count
    for (part, ipu, kind, label, seconds), count in counts.items():
        row = OperationTime(f"{part}/{label}", kind, "", count, links=count * seconds)
        yield replace(row, ipu=ipu, part=part)


def _memory(pipeline: TracedPipeline, passes: Passes, prices: Prices, ipu: int) -> Memory:
    plan, footprint, chip = pipeline.plan, passes.footprint, passes.system.machine
    places = [(stage, part) for stage, part, place in plan.places() if place == ipu]

    def size_of(buffer: Buffer) -> float:
        default = buffer.depth * prices.bytes_in(buffer.kind, buffer.stage, buffer.part)
        return footprint.buffers.get(buffer, default)

    holdings = holdings_of(plan, ipu, prices.costs, size_of)
    copies = 2 if passes.overlaps else 1  # One is transferred while the program uses the other.
    feeds = copies * (footprint.element * (ipu in plan.mapping[0]) + footprint.result * (ipu in plan.mapping[-1]))
    kept = Memory(
        ipu=ipu,
        variables=round(holdings.weights - passes.size * _shared(passes, places, plan)),
        optimizer=round(holdings.state),
        accumulators=round(holdings.accumulators),
        stash=round(holdings.stash + holdings.links),
        feeds=feeds,
        off_chip=round(holdings.off_chip),
        constants=0,
        data=0,
        code_low=0,
        code_high=0,
        capacity=chip.bytes,
    )
    memories = [report.memory for place in places for report in passes.reports[place].values()]
    if passes.update is not None:
        share = sum(passes.share(place) for place in places)
        update = passes.update.memory
        data = round(share * update.data)
        # The update is one program for all stages, and its values are not assigned to stages.
        largest = (("values of the weight update", data),) if data else ()
        liveness = tuple((index, round(share * size)) for index, size in update.liveness)
        memories.append(replace(update, data=data, largest=largest, liveness=liveness))
    return memory_of_parts(memories, chip, kept)


def _shared(passes: Passes, places: Sequence[Place], plan: Plan) -> int:
    """Returns the bytes that are counted more than once because stages of an IPU share variables."""
    if plan.phased:
        return 0
    sizes = {
        id(variable.handle): (variable.shape.num_elements() or 0) * variable.dtype.size
        for place in places
        for variable in passes.parts[place].used_variables
    }
    return sum(passes.parts[place].bytes.weight_bytes for place in places) - sum(sizes.values())


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
    """Returns the plan, shortened to about `_SHOWN` tasks, but with at least one iteration of its steady section."""
    steady = plan.section("steady")
    tasks_of_iteration = sum(len(step.tasks) for step in steady.steps)
    tasks_of_ramps = sum(
        len(step.tasks) for section in plan.sections if section is not steady for step in section.steps
    )
    iterations = max(1, (_SHOWN - tasks_of_ramps) // tasks_of_iteration) if tasks_of_iteration else 1
    if steady.repeat <= iterations:
        return plan
    return plan.with_micro_batches(plan.unlooped_micro_batches + iterations * steady.advance)
