"""What would help a pipeline on a machine: other plans, another cut, and its passes read again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tensorflow_ipu.machine import Memory, NotAsked, Report, Suggestion, advice_of_reading, changed
from tensorflow_ipu.pipelining.report.cost import PlanCost, plan_cost
from tensorflow_ipu.pipelining.report.prices import StageCost, StageCosts
from tensorflow_ipu.pipelining.schedule.enums import PipelineSchedule, RecomputationMode
from tensorflow_ipu.pipelining.schedule.order import overlap_length
from tensorflow_ipu.pipelining.schedule.pipelined import pipeline_plan
from tensorflow_ipu.pipelining.schedule.plan import Plan
from tensorflow_ipu.pipelining.schedule.plan_arguments import SUPPORTED_MODES
from tensorflow_ipu.replicas import power_of_2

Asked = Iterator[Suggestion | NotAsked]
_HALVES = ("forward", "update", "activation_bytes", "weight_bytes", "state_bytes", "off_chip_bytes")


@dataclass(frozen=True)
class Planned:
    """A pipeline with what its stages cost, for advice on other plans."""

    report: Report
    plan: Plan
    costs: StageCosts
    again: Callable[..., Report]
    proportion: float | None

    def advice(self) -> Asked:
        """All of it."""
        yield from advice_of_reading(self.report, self.again, self.proportion)
        plan = self.plan
        if plan.phased or plan.name == "Sharded" or plan.batch_serialization_iterations > 1:
            why = f"it runs as {plan.name!r}: `compare_plans` costs pipelines of its stages"
            yield NotAsked("recomputation, schedules, stages", why)
            return
        yield from self._modes()
        yield from self._schedules()
        yield from self._more_micro_batches()
        yield from self._one_more_stage()
        yield NotAsked(
            "other micro-batches",
            "the stages are traced for the shapes of theirs: ask for a report of a program with others",
            of_models=True,
        )

    def _modes(self) -> Asked:
        """Other recomputation."""
        plan = self.plan
        if not plan.training:
            return
        for mode in (None, *SUPPORTED_MODES[plan.schedule]):
            if mode is plan.recomputation:
                continue
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

    def _more_micro_batches(self) -> Asked:
        count = 2 * self.plan.micro_batches
        words = f"`gradient_accumulation_count` of {count} in place of {self.plan.micro_batches}"
        yield from self._asked(words, mode=self.plan.recomputation, micro_batches=count)

    def _one_more_stage(self) -> Asked:
        """The dearest stage, cut in two that are equal: a program does not say where it could really be cut."""
        plan, costs = self.plan, self._flat_costs()
        words = "one more stage"
        if costs is None or len(plan.ipus) < plan.stages:
            yield NotAsked(words, "stages have concurrent parts, or share IPUs: `compare_plans` costs other mappings")
            return
        top_operations = max(range(plan.stages), key=lambda stage: _time(costs[stage]))
        halves = [_half(costs[top_operations])] * 2
        more = [*costs[:top_operations], *halves, *costs[top_operations + 1 :]]
        words += f" on an IPU of its own: stage {top_operations}, the dearest, cut in two that take equally long"
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
        mapping = [list(ipus) if many else ipus[0] for ipus, many in zip(plan.mapping, plan.concurrent, strict=True)]
        if costs is not None:
            mapping = list(range(len(costs)))
        ipus = [tuple(each) if isinstance(each, list) else (each,) for each in mapping]
        if schedule is PipelineSchedule.Interleaved and plan.training and len(set(ipus)) < len(ipus):
            yield NotAsked(words, "Interleaved trains with one stage an IPU only")
            return
        wanted = micro_batches or plan.micro_batches
        multiple = overlap_length(schedule, ipus, plan.training)
        count = -(-wanted // multiple) * multiple
        if count != wanted:
            words += f", and `gradient_accumulation_count` of {count}, a multiple of {multiple}"
        other = pipeline_plan(
            len(mapping),
            count,
            schedule,
            device_mapping=mapping,
            training=plan.training,
            recomputation_mode=mode,
            repeat_count=plan.repeat_count,
        ).offloaded(**plan.offloads)
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


def _time(cost: StageCost) -> float:
    return cost.forward + (2 * cost.forward if cost.backward is None else cost.backward)
