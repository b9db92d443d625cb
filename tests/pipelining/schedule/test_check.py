"""A plan with one thing wrong is refused, and the fault names the slot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tensorflow_ipu.pipelining import (
    BufferKind,
    PipelineSchedule,
    PlanError,
    RecomputationMode,
    Step,
    Task,
    check_plan,
    parallel_phases_plan,
    parse_instruction,
    pipeline_plan,
    serial_phases_plan,
)

INTERLEAVED = PipelineSchedule.Interleaved
THEN = RecomputationMode.RecomputeThenBackpropagate


def with_step(plan, section, number, change):
    """The plan with the tasks of one step changed."""
    old = plan.section(section)
    steps = list(old.steps)
    steps[number] = Step(tuple(change(list(steps[number].tasks))))
    return with_section(plan, replace(old, steps=tuple(steps)))


def with_section(plan, section):
    """The plan with another section of that name."""
    return replace(plan, sections=tuple(section if one.name == section.name else one for one in plan.sections))


def with_buffer(plan, kind, stage, change):
    """The plan with one buffer changed, or left out where `change` gives None."""
    buffers = [change(one) if (one.kind, one.stage) == (kind, stage) else one for one in plan.buffers]
    return replace(plan, buffers=tuple(one for one in buffers if one))


def renamed(before, after):
    """Puts another instruction in the place of one."""

    def change(tasks):
        assert any(str(task.instruction) == before for task in tasks)
        new = parse_instruction(after)
        return [replace(task, instruction=new) if str(task.instruction) == before else task for task in tasks]

    return change


def without(text):
    """Leaves an instruction out."""
    return lambda tasks: [task for task in tasks if str(task.instruction) != text]


def faults(plan):
    """What the check says of a plan that it refuses."""
    with pytest.raises(PlanError) as refused:
        check_plan(plan)
    assert refused.value.faults
    return "\n".join(refused.value.faults)


def test_two_tasks_in_a_slot():
    plan = with_step(pipeline_plan(2, 4), "ramp up", 0, lambda tasks: [*tasks, Task(0, 0, parse_instruction("0F1"))])
    assert "step 0, slot 0, IPU 0: `0F1` in the section `ramp up`: `0F0` is in the same slot" in faults(plan)


def test_a_task_on_an_ipu_of_another_stage():
    plan = with_step(pipeline_plan(2, 4), "ramp up", 0, lambda tasks: [replace(tasks[0], ipu=1)])
    assert "step 0, slot 0, IPU 1: `0F0` in the section `ramp up`: it belongs on IPU 0" in faults(plan)


def test_a_stage_and_a_part_that_there_are_not():
    plan = with_step(pipeline_plan(2, 4), "ramp up", 0, renamed("0F0", "7F0"))
    assert "there is no stage 7" in faults(plan)
    plan = with_step(pipeline_plan(2, 4, device_mapping=[[0, 1], 2]), "ramp up", 0, renamed("0.1F0", "0.2F0"))
    assert "stage 0 has 2 parts, and not this one" in faults(plan)


def test_a_pass_that_is_missing():
    plan = with_step(pipeline_plan(2, 4), "ramp up", 1, without("1F0"))
    assert faults(plan) == "`1F0` on IPU 1 is in no slot"


def test_a_pass_that_is_run_twice_or_for_no_micro_batch():
    plan = with_step(pipeline_plan(2, 4), "ramp up", 1, renamed("0F1", "0F0"))
    assert "step 1, slot 0, IPU 0: `0F0`: it is run 2 times" in faults(plan)
    plan = with_step(pipeline_plan(2, 4), "ramp up", 1, renamed("0F1", "0F9"))
    assert "step 1, slot 0, IPU 0: `0F9`: there are 4 micro-batches" in faults(plan)


def test_a_pass_that_the_plan_does_not_have():
    plan = with_step(pipeline_plan(2, 2, training=False), "ramp up", 0, renamed("0F0", "0B0"))
    assert "step 0, slot 0, IPU 0: `0B0`: this plan has no such pass" in faults(plan)


def test_micro_batches_out_of_order():
    plan = with_step(pipeline_plan(2, 4), "ramp up", 0, renamed("0F0", "0F1"))
    plan = with_step(plan, "ramp up", 1, renamed("0F1", "0F0"))
    said = faults(plan)
    assert "step 0, slot 0, IPU 0: `0F1`: runs before micro-batch 0, out of order" in said
    assert "step 1, slot 0, IPU 1: `1F0`: needs what is made in step 1, slot 0, IPU 0: `0F0`" in said


def test_a_forward_pass_before_its_inputs_are_exchanged():
    early = pipeline_plan(2, 4)
    (task,) = (task for task in early.section("ramp up").steps[1].tasks if str(task.instruction) == "1F0")
    plan = with_step(early, "ramp up", 1, without("1F0"))
    plan = with_step(plan, "ramp up", 0, lambda tasks: [*tasks, task])
    assert (
        "step 0, slot 0, IPU 1: `1F0`: needs what is made in step 0, slot 0, IPU 0: `0F0`, which is exchanged as that"
        " step ends" in faults(plan)
    )


def test_a_backward_pass_before_its_recomputation():
    plan = pipeline_plan(2, 2, PipelineSchedule.Sequential, recomputation_mode=RecomputationMode.Auto)
    swapped = {0: 1, 1: 0}
    plan = with_step(plan, "steady", 3, lambda tasks: [replace(task, slot=swapped[task.slot]) for task in tasks])
    assert "step 3, slot 0, IPU 0: `0B0`: needs what is made in step 3, slot 1, IPU 0: `0R0`" in faults(plan)


def test_a_fault_of_the_steady_loop_is_not_told_for_each_iteration():
    plan = pipeline_plan(2, 400)
    said = faults(with_step(plan, "steady", 0, without("0B0"))).splitlines()
    assert said[0] == "`0B0` on IPU 0 is in no slot"
    assert said[-1] == "and 393 more like the last one"
    assert len(said) == 5


@pytest.mark.parametrize("schedule", PipelineSchedule, ids=lambda one: one.name)
def test_plans_of_any_number_of_micro_batches_are_checked(schedule):
    plan = pipeline_plan(4, 2**30, schedule)
    check_plan(plan)
    last = replace(plan.section("ramp down"), first=plan.section("ramp down").first - 1)
    assert schedule is PipelineSchedule.Sequential or "is run 2 times" in faults(with_section(plan, last))
    assert "is in no slot" in faults(replace(plan, micro_batches=plan.micro_batches + 1))
    assert "depth 9" in faults(with_buffer(plan, BufferKind.ACTIVATIONS, 0, lambda one: replace(one, depth=9)))


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_stash_that_is_too_shallow(stage):
    plan = pipeline_plan(4, 8)
    plan = with_buffer(plan, BufferKind.ACTIVATIONS, stage, lambda one: replace(one, depth=one.depth - 1))
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
    deep = with_buffer(plan, kind, 1, lambda one: replace(one, depth=one.depth + 1))
    depth = next(one.depth for one in deep.buffers if one.kind is kind and one.stage == 1)
    assert (
        faults(deep)
        == f"`{kind.value}` of stage 1 has depth {depth}, but never holds more than {depth - 1} micro-batches at once"
    )


def test_a_link_that_is_too_shallow():
    plan = pipeline_plan(2, 2, PipelineSchedule.Sequential, batch_serialization_iterations=3)
    plan = with_buffer(plan, BufferKind.FORWARD_LINK, 1, lambda one: replace(one, depth=2))
    assert "overwrites `forward link` of stage 1 for micro-batch 0 at position 0 of 2" in faults(plan)


def test_a_buffer_that_is_missing_or_holds_nothing():
    plan = with_buffer(pipeline_plan(2, 4), BufferKind.ACCUMULATOR, 1, lambda _: None)
    assert faults(plan) == "stage 1 has no buffer for `accumulator`"
    plan = with_buffer(pipeline_plan(2, 4), BufferKind.BACKWARD_LINK, 0, lambda one: replace(one, depth=0))
    assert faults(plan) == "`backward link` of stage 0 has depth 0; it holds something"


def test_an_update_outside_its_section():
    plan = pipeline_plan(2, 4)
    last = len(plan.section("ramp down").steps) - 1
    plan = with_step(plan, "ramp down", last, lambda tasks: [*tasks, Task(1, 1, parse_instruction("1U"))])
    assert "`1U` in the section `ramp down`: weights are updated when all sections but `update` are over" in faults(
        plan
    )


def test_an_update_before_the_last_gradients():
    plan = pipeline_plan(2, 4)
    plan = replace(plan, sections=(plan.sections[3], *plan.sections[:3]))
    assert "step 0, slot 0, IPU 0: `0U`: comes before the last gradients of stage 0, of step 7" in faults(plan)


def test_a_phase_that_is_not_loaded():
    plan = with_step(serial_phases_plan([0, 0, 0]), "steady", 1, without("1LF0"))
    assert "`1F0`: its stage is not on the chip; load it before" in faults(plan)


def test_a_phase_that_is_replaced_without_being_saved():
    plan = with_step(parallel_phases_plan([0, 1, 0, 1]), "steady", 1, without("0SF0"))
    said = faults(plan)
    assert "IPU 0: `2LF0`: replaces what step 1, slot 0, IPU 0: `0F0` left unsaved" in said


def test_an_update_that_is_never_saved():
    plan = with_step(serial_phases_plan([0, 0]), "update", 1, without("1SU"))
    assert "`1U`: what it left is never saved" in faults(plan)


def test_all_faults_are_told_together():
    plan = with_buffer(pipeline_plan(4, 8), BufferKind.ACTIVATIONS, 0, lambda one: replace(one, depth=6))
    plan = with_buffer(plan, BufferKind.ACTIVATIONS, 1, lambda one: replace(one, depth=4))
    said = faults(plan)
    assert "stage 0" in said
    assert "stage 1" in said
