"""Random plans pass their check, and a machine that has only the plan computes the results of plain accumulation."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorflow_ipu import pipelining
from tensorflow_ipu.pipelining import Backward, BufferKind, Load, PipelineSchedule, RecomputationMode, Save, check_plan

MODES = {
    PipelineSchedule.Grouped: tuple(RecomputationMode),
    PipelineSchedule.Interleaved: (RecomputationMode.Auto, RecomputationMode.RecomputeThenBackpropagate),
    PipelineSchedule.Sequential: (RecomputationMode.Auto, RecomputationMode.RecomputeAndBackpropagateInterleaved),
}


@st.composite
def mappings(draw, stages, *, disjoint=False):
    """Draws the IPUs of stages, some with several parts; with `disjoint`, each IPU is used once."""
    widths = [draw(st.sampled_from([1, 1, 1, 2, 3])) for _ in range(stages)]
    if disjoint:
        ipus = draw(st.permutations(range(sum(widths))))
        ends = [sum(widths[: stage + 1]) for stage in range(stages)]
        groups = [list(ipus[end - width : end]) for end, width in zip(ends, widths, strict=True)]
    else:
        several = st.integers(0, 4)
        groups = [draw(st.lists(several, min_size=width, max_size=width, unique=True)) for width in widths]
    return [group if len(group) > 1 or draw(st.booleans()) else group[0] for group in groups]


@st.composite
def pipelines(draw):
    """Draws plans of pipelines with any schedule, mapping and recomputation mode."""
    stages = draw(st.integers(2, 7))
    schedule = draw(st.sampled_from(PipelineSchedule))
    training = draw(st.booleans())
    serialization = draw(st.integers(1, 3)) if schedule is PipelineSchedule.Sequential else 1
    if serialization > 1:
        mapping = [draw(st.integers(0, 3))] * stages
    else:
        mapping = draw(mappings(stages, disjoint=schedule is PipelineSchedule.Interleaved and training))
    return pipelining.pipeline_plan(
        stages,
        draw(st.integers(1, 3)) * pipelining.overlap_length(schedule, mapping, training),
        schedule,
        device_mapping=mapping,
        training=training,
        recomputation_mode=draw(st.sampled_from((None, *MODES[schedule]))),
        batch_serialization_iterations=serialization,
    )


@st.composite
def shards_and_phases(draw):
    """Draws plans of sharded models and of phases."""
    stages = draw(st.integers(1, 6))
    training, micro_batches = draw(st.booleans()), draw(st.integers(1, 4))
    kind = draw(st.sampled_from(("sharded", "serial", "parallel")))
    if kind == "sharded":
        mode = draw(st.sampled_from((None, *MODES[PipelineSchedule.Sequential])))
        mapping = draw(mappings(stages))
        return pipelining.sharded_plan(mapping, training=training, micro_batches=micro_batches, recomputation_mode=mode)
    width = draw(st.integers(1, 3))
    even, odd = list(range(width)), list(range(10, 10 + width))
    if kind == "serial":
        return pipelining.serial_phases_plan([even] * stages, training=training, micro_batches=micro_batches)
    groups: list[int | list[int]] = [odd if stage % 2 else even for stage in range(stages)]
    return pipelining.parallel_phases_plan(groups, training=training, micro_batches=micro_batches)


@dataclass
class Result:
    """The output of each micro-batch, and the accumulated gradient of each weight."""

    outputs: list[int]
    gradients: dict[tuple[int, int | None], int]


def weight(stage, part):
    """Returns the weight of a part of a stage, which multiplies its input by it."""
    return 2 + 3 * stage + 7 * (part or 0)


def expected(plan):
    """Returns the result of running one micro-batch after the other forward and backward, without a plan."""
    outputs = []
    gradients = {(stage, part): 0 for stage, part, _ in plan.places()} if plan.training else {}
    factors = [sum(weight(stage, part) for part, _ in plan.parts(stage)) for stage in range(plan.stages)]
    for micro_batch in range(plan.micro_batches):
        inputs = [micro_batch + 1]
        for factor in factors:
            inputs.append(inputs[-1] * factor)
        outputs.append(inputs[-1])
        if not plan.training:
            continue
        gradient = 1
        for stage in reversed(range(plan.stages)):
            for part, _ in plan.parts(stage):
                gradients[stage, part] += gradient * inputs[stage]
            gradient *= factors[stage]
    return Result(outputs, gradients)


class Machine:
    """A machine that runs a plan with ring buffers. It uses the plan's sections, effects and buffers only."""

    def __init__(self, plan):
        self._plan = plan
        self._rings: dict[Any, list[Any]] = {buffer: [None] * buffer.depth for buffer in plan.buffers}
        self._feed = iter(range(1, plan.micro_batches + 1))
        self._elements: dict[int, int] = {}
        self._outputs: dict[int, int] = {}
        self._gradients: dict[tuple[int, int | None], int] = {}
        self._exchanged: list[tuple[Any, int, int]] = []

    def run(self):
        for section in self._plan.sections:
            for iteration in range(section.repeat):
                for step in section.steps:
                    for task in step.tasks:
                        if not isinstance(task.instruction, Load | Save):
                            self._run(task, section.base(iteration))
                    self._exchange()
        return Result([self._outputs[micro_batch] for micro_batch in sorted(self._outputs)], self._gradients)

    def _run(self, task, base):
        instruction = task.instruction
        effects = self._plan.effects(instruction)
        if isinstance(instruction, pipelining.Update):
            (accumulator,) = effects.reads
            assert (instruction.stage, instruction.part) not in self._gradients
            self._gradients[instruction.stage, instruction.part] = self._rings[accumulator][0] or 0
            return
        assert not isinstance(instruction, Load | Save)
        micro_batch = base + instruction.micro_batch
        if effects.takes_infeed and micro_batch not in self._elements:
            self._elements[micro_batch] = next(self._feed)
        values: dict[BufferKind, int] = {}
        for buffer in effects.reads:
            assert buffer.ipu == task.ipu
            stored, values[buffer.kind] = self._rings[buffer][buffer.position(micro_batch)]
            assert stored == micro_batch, f"{task} reads micro-batch {stored} for {micro_batch}"
        written = self._compute(instruction, values, micro_batch)
        if effects.gives_outfeed:
            self._outputs[micro_batch] = self._outputs.get(micro_batch, 0) + written[BufferKind.FORWARD_LINK]
        for buffer in effects.writes:
            value = written[buffer.kind]
            if buffer.kind in (BufferKind.FORWARD_LINK, BufferKind.BACKWARD_LINK):
                self._exchanged.append((buffer, micro_batch, value))
            elif buffer.kind is BufferKind.ACCUMULATOR:
                self._rings[buffer][0] = (self._rings[buffer][0] or 0) + value
            else:
                self._rings[buffer][buffer.position(micro_batch)] = (micro_batch, value)

    def _compute(self, instruction, values, micro_batch):
        kind = BufferKind
        factor = weight(instruction.stage, instruction.part)
        if isinstance(instruction, pipelining.Forward):
            inputs = values.get(kind.FORWARD_LINK, self._elements.get(micro_batch, 0))
            return {kind.FORWARD_LINK: inputs * factor, kind.ACTIVATIONS: inputs, kind.INPUTS: inputs}
        if isinstance(instruction, pipelining.Recompute):
            return {kind.RECOMPUTED: values[kind.INPUTS]}
        assert isinstance(instruction, Backward)
        activations = values.get(kind.ACTIVATIONS, values.get(kind.RECOMPUTED, 0))
        gradient = values.get(kind.BACKWARD_LINK, 1)
        return {kind.ACCUMULATOR: gradient * activations, kind.BACKWARD_LINK: gradient * factor}

    def _exchange(self):
        """Writes the links. Values of several parts of a stage are summed."""
        for buffer, micro_batch, value in self._exchanged:
            place = self._rings[buffer][buffer.position(micro_batch)]
            total = place[1] + value if place and place[0] == micro_batch else value
            self._rings[buffer][buffer.position(micro_batch)] = (micro_batch, total)
        self._exchanged.clear()


FEWER = settings(max_examples=60, deadline=None)


@settings(max_examples=150, deadline=None)
@given(pipelines() | shards_and_phases())
def test_any_plan_passes_the_check_and_executes_to_the_numbers_of_plain_accumulation(plan):
    check_plan(plan)
    assert Machine(plan).run() == expected(plan)


@FEWER
@given(pipelines() | shards_and_phases())
def test_walk_and_table_and_text_tell_the_same(plan):
    table, rows = plan.table(), []
    for number, _, step in plan.walk():
        for task in step.tasks:
            assert pipelining.parse_instruction(str(task.instruction)) == task.instruction
            rows.append((number, task.slot, task.ipu, task.instruction.stage, task.instruction.part or 0))
    columns = (table.step, table.slot, table.ipu, table.stage, table.part)
    assert sorted(rows) == sorted(zip(*(column.tolist() for column in columns), strict=True))
    assert plan.step_count == 1 + max(row[0] for row in rows)
    assert plan.slot_count == sum(step.slots for _, _, step in plan.walk())
    assert table.micro_batch.max() == plan.micro_batches - 1


@FEWER
@given(pipelines() | shards_and_phases(), st.integers(1, 5))
def test_more_micro_batches_change_nothing_but_the_repeats_of_the_steady_loop(plan, added):
    steady = plan.section("steady")
    longer = plan.with_micro_batches(plan.micro_batches + added * steady.advance)
    check_plan(longer)
    assert longer.buffers == plan.buffers
    assert [section.steps for section in longer.sections] == [section.steps for section in plan.sections]
    assert longer.section("steady").repeat == steady.repeat + added
    assert longer.unlooped_micro_batches == plan.unlooped_micro_batches
    assert longer.with_micro_batches(plan.micro_batches) == plan


@FEWER
@given(pipelines() | shards_and_phases(), st.lists(st.floats(0.1, 5.0), min_size=4, max_size=4))
def test_the_cost_is_that_of_the_timeline(plan, times):
    stage_cost = pipelining.StageCost(times[0], times[1], update=times[2], load=times[3], save=times[3])
    cost = pipelining.plan_cost(plan, stage_cost)
    end, busy = 0.0, dict.fromkeys(plan.ipus, 0.0)
    for _, begin, finish, spans in pipelining.timeline(plan, stage_cost):
        assert begin == end
        for span in spans:
            assert begin <= span.begin <= span.end <= finish
            busy[span.ipu] += span.end - span.begin
        end = finish
    np.testing.assert_allclose(cost.time, end)
    np.testing.assert_allclose([ipu.busy for ipu in cost.ipus], [busy[ipu] for ipu in plan.ipus])
    shares = cost.utilisation + cost.recompute_share + cost.transfer_share + cost.bubble_share
    np.testing.assert_allclose(shares, 1.0)
