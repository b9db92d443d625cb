"""A plan with one error is rejected, and the message names the slot."""

from dataclasses import replace

import pytest

from tensorflow_ipu import pipelining
from tensorflow_ipu.pipelining import BufferKind, PipelineSchedule, RecomputationMode, pipeline_plan, serial_phases_plan

INTERLEAVED = PipelineSchedule.Interleaved
THEN = RecomputationMode.RecomputeThenBackpropagate


def with_step(plan, section, number, change):
    """Returns the plan with the tasks of one step changed."""
    old = plan.section(section)
    steps = list(old.steps)
    steps[number] = pipelining.Step(tuple(change(list(steps[number].tasks))))
    return with_section(plan, replace(old, steps=tuple(steps)))


def with_section(plan, section):
    """Returns the plan with the section of the same name replaced."""
    return replace(plan, sections=tuple(section if old.name == section.name else old for old in plan.sections))


def with_buffer(plan, kind, stage, change):
    """Returns the plan with one buffer changed, or without it if `change` returns None."""
    buffers = [change(buffer) if (buffer.kind, buffer.stage) == (kind, stage) else buffer for buffer in plan.buffers]
    return replace(plan, buffers=tuple(buffer for buffer in buffers if buffer))


def renamed(old_text, new_text):
    """Returns a change that replaces an instruction."""

    def change(tasks):
        assert any(str(task.instruction) == old_text for task in tasks)
        new = pipelining.parse_instruction(new_text)
        return [replace(task, instruction=new) if str(task.instruction) == old_text else task for task in tasks]

    return change


def without(text):
    """Returns a change that removes an instruction."""
    return lambda tasks: [task for task in tasks if str(task.instruction) != text]


def faults(plan):
    """Returns the errors of a plan that the check rejects."""
    with pytest.raises(pipelining.PlanError) as error:
        pipelining.check_plan(plan)
    assert error.value.faults
    return "\n".join(error.value.faults)


def added(text, ipu, slot=0):
    """Returns a change that adds a task."""
    return lambda tasks: [*tasks, pipelining.Task(slot, ipu, pipelining.parse_instruction(text))]


SMALL, UP, FIRST = pipeline_plan(2, 4), "ramp up", "step 0, slot 0, IPU 0: "
LATE = len(SMALL.section("ramp down").steps) - 1
PARTS, INFERENCE = pipeline_plan(2, 4, device_mapping=[[0, 1], 2]), pipeline_plan(2, 2, training=False)
RECOMPUTING = pipeline_plan(2, 2, PipelineSchedule.Sequential, recomputation_mode=RecomputationMode.Auto)
LOADED = serial_phases_plan([0] * 3)
KEPT = serial_phases_plan([0] * 3, liveness=pipelining.Liveness.OffChipAfterFwd)
GROUPS = pipelining.parallel_phases_plan([0, 1, 0, 1])
ABSENT = "its stage is not on the chip; load it first"
EARLY = "in the section `ramp down`: weights are updated when all sections but `update` are over"


def moved(tasks):
    """Moves the only task to IPU 1."""
    return [replace(task, ipu=1) for task in tasks]


def swapped(tasks):
    return [replace(task, slot=1 - task.slot) for task in tasks]


@pytest.mark.parametrize(
    ("plan", "section", "step", "change", "message"),
    [
        (SMALL, UP, 0, added("0F1", 0), FIRST + "`0F1` in the section `ramp up`: `0F0` is in the same slot"),
        (SMALL, UP, 0, moved, "step 0, slot 0, IPU 1: `0F0` in the section `ramp up`: it belongs on IPU 0"),
        (SMALL, UP, 0, renamed("0F0", "7F0"), "there is no stage 7"),
        (PARTS, UP, 0, renamed("0.1F0", "0.2F0"), "stage 0 has 2 parts, and not this one"),
        (SMALL, UP, 1, without("1F0"), "`1F0` on IPU 1 is in no slot"),
        (SMALL, UP, 1, renamed("0F1", "0F0"), "step 1, slot 0, IPU 0: `0F0`: it is run 2 times"),
        (SMALL, UP, 1, renamed("0F1", "0F9"), "step 1, slot 0, IPU 0: `0F9`: there are 4 micro-batches"),
        (INFERENCE, UP, 0, renamed("0F0", "0B0"), FIRST + "`0B0`: this plan has no such pass"),
        (RECOMPUTING, "steady", 3, swapped, "`0B0`: needs what is made in step 3, slot 1, IPU 0: `0R0`"),
        (SMALL, "ramp down", LATE, added("1U", 1, 1), f"`1U` {EARLY}"),
        (LOADED, "steady", 1, without("1LF0"), f"`1F0`: {ABSENT}"),
        (KEPT, "steady", None, without("1LB0"), f"`1B0`: {ABSENT}"),
        (GROUPS, "steady", 1, without("0SF0"), "`2LF0`: replaces what step 1, slot 0, IPU 0: `0F0` has written"),
        (serial_phases_plan([0, 0]), "update", 1, without("1SU"), "`1U`: what it has written is never saved"),
    ],
)
def test_a_task_that_is_wrong_is_named(plan, section, step, change, message):
    for number in range(len(plan.section(section).steps)) if step is None else [step]:
        plan = with_step(plan, section, number, change)
    assert message in faults(plan)


def test_passes_out_of_order_or_before_what_they_take():
    plan = with_step(SMALL, UP, 0, renamed("0F0", "0F1"))
    messages = faults(with_step(plan, UP, 1, renamed("0F1", "0F0")))
    assert "step 0, slot 0, IPU 0: `0F1`: runs before micro-batch 0, out of order" in messages
    assert "step 1, slot 0, IPU 1: `1F0`: needs what is made in step 1, slot 0, IPU 0: `0F0`" in messages
    early = faults(with_step(with_step(SMALL, UP, 1, without("1F0")), UP, 0, added("1F0", 1)))
    assert (
        "IPU 1: `1F0`: needs what is made in step 0, slot 0, IPU 0: `0F0`, which is exchanged as that step ends"
        in early
    )
    plan = replace(SMALL, sections=(SMALL.sections[3], *SMALL.sections[:3]))
    assert "step 0, slot 0, IPU 0: `0U`: runs before the last gradients of stage 0, of step 7" in faults(plan)


def test_a_fault_of_the_steady_loop_is_not_told_for_each_iteration():
    plan = pipeline_plan(2, 400)
    messages = faults(with_step(plan, "steady", 0, without("0B0"))).splitlines()
    assert messages[0] == "`0B0` on IPU 0 is in no slot"
    assert messages[-1] == "and 393 more like the last one"
    assert len(messages) == 5


@pytest.mark.parametrize("schedule", PipelineSchedule, ids=lambda schedule: schedule.name)
def test_plans_of_any_number_of_micro_batches_are_checked(schedule):
    plan = pipeline_plan(4, 2**30, schedule)
    pipelining.check_plan(plan)
    last = replace(plan.section("ramp down"), first=plan.section("ramp down").first - 1)
    assert schedule is PipelineSchedule.Sequential or "is run 2 times" in faults(with_section(plan, last))
    assert "is in no slot" in faults(replace(plan, micro_batches=plan.micro_batches + 1))
    assert "depth 9" in faults(with_buffer(plan, BufferKind.ACTIVATIONS, 0, lambda buffer: replace(buffer, depth=9)))


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_stash_that_is_too_shallow(stage):
    plan = pipeline_plan(4, 8)
    plan = with_buffer(plan, BufferKind.ACTIVATIONS, stage, lambda buffer: replace(buffer, depth=buffer.depth - 1))
    depth = 2 * (3 - stage)
    assert f"overwrites `activations` of stage {stage} for micro-batch 0 at position 0 of {depth}" in faults(plan)
    assert f"IPU {stage}: `{stage}F{depth}`" in faults(plan)


@pytest.mark.parametrize(
    ("plan", "kind"),
    [
        (pipeline_plan(4, 8), BufferKind.ACTIVATIONS),
        (pipeline_plan(4, 8, INTERLEAVED), BufferKind.ACTIVATIONS),
        (pipeline_plan(4, 8, recomputation_mode=THEN), BufferKind.INPUTS),
        (pipeline_plan(4, 8, recomputation_mode=THEN), BufferKind.RECOMPUTED),
        (pipeline_plan(4, 8), BufferKind.FORWARD_LINK),
        (pipeline_plan(4, 8), BufferKind.BACKWARD_LINK),
    ],
)
def test_a_buffer_that_is_too_deep(plan, kind):
    deep = with_buffer(plan, kind, 1, lambda buffer: replace(buffer, depth=buffer.depth + 1))
    depth = next(buffer.depth for buffer in deep.buffers if buffer.kind is kind and buffer.stage == 1)
    assert (
        faults(deep)
        == f"`{kind.value}` of stage 1 has depth {depth}, but never holds more than {depth - 1} micro-batches at once"
    )


def test_a_buffer_that_is_too_shallow_or_missing_or_holds_nothing():
    plan = pipeline_plan(2, 2, PipelineSchedule.Sequential, batch_serialization_iterations=3)
    plan = with_buffer(plan, BufferKind.FORWARD_LINK, 1, lambda buffer: replace(buffer, depth=2))
    assert "overwrites `forward link` of stage 1 for micro-batch 0 at position 0 of 2" in faults(plan)
    plan = with_buffer(SMALL, BufferKind.ACCUMULATOR, 1, lambda _: None)
    assert faults(plan) == "stage 1 has no buffer for `accumulator`"
    plan = with_buffer(SMALL, BufferKind.BACKWARD_LINK, 0, lambda buffer: replace(buffer, depth=0))
    assert faults(plan) == "`backward link` of stage 0 has depth 0; it must be at least 1"
    plan = with_buffer(pipeline_plan(4, 8), BufferKind.ACTIVATIONS, 0, lambda buffer: replace(buffer, depth=6))
    messages = faults(with_buffer(plan, BufferKind.ACTIVATIONS, 1, lambda buffer: replace(buffer, depth=4)))
    assert "stage 0" in messages
    assert "stage 1" in messages
