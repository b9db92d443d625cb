"""Plans of pipelines and phases: depths, sections, transfers, and all errors of their arguments."""

import pytest

from tensorflow_ipu import pipelining
from tensorflow_ipu.machine import system_of
from tensorflow_ipu.pipelining import BufferKind, parallel_phases_plan, pipeline_plan, plan_cost, serial_phases_plan

GROUPED, INTERLEAVED, SEQUENTIAL = pipelining.PipelineSchedule
THEN = pipelining.RecomputationMode.RecomputeThenBackpropagate
WITHIN = pipelining.RecomputationMode.RecomputeAndBackpropagateInterleaved


def test_enums_have_the_members_of_the_contract():
    numbers = {member.name: int(member) for member in pipelining.PipelineSchedule}
    assert numbers == {"Grouped": 0, "Interleaved": 1, "Sequential": 2}
    assert [member.name for member in pipelining.RecomputationMode] == ["Auto", THEN.name, WITHIN.name]


@pytest.mark.parametrize("recompute", [None, pipelining.RecomputationMode.Auto])
@pytest.mark.parametrize("stages", [2, 3, 4, 8, 16])
def test_stash_depth_of_each_schedule(stages, recompute):
    def depths(schedule):
        plan = pipeline_plan(stages, 2 * stages, schedule, recomputation_mode=recompute)
        return [plan.stash_depth(stage) for stage in range(stages)]

    assert depths(GROUPED) == [2 * (stages - 1 - stage) + 1 for stage in range(stages)]
    assert depths(INTERLEAVED) == [stages - stage for stage in range(stages)]
    assert depths(SEQUENTIAL) == [1] * stages


def test_inference_stashes_and_recomputes_nothing():
    plan = pipeline_plan(4, 8, training=False, recomputation_mode=pipelining.RecomputationMode.Auto)
    assert plan.recomputation is None
    assert {buffer.kind for buffer in plan.buffers} == {BufferKind.FORWARD_LINK}
    assert [plan.stash_depth(stage) for stage in range(4)] == [0] * 4


@pytest.mark.parametrize("mode", [THEN, WITHIN])
def test_recomputation_stashes_inputs_in_all_stages_but_the_last(mode):
    plan = pipeline_plan(3, 6, recomputation_mode=mode)
    for stage in range(2):
        assert plan.buffer(BufferKind.INPUTS, stage)
        assert plan.buffer(BufferKind.RECOMPUTED, stage)
        assert plan.buffer(BufferKind.ACTIVATIONS, stage) is None
    assert plan.buffer(BufferKind.INPUTS, 2) is None
    assert plan.buffer(BufferKind.ACTIVATIONS, 2)


@pytest.mark.parametrize(
    ("schedule", "mode"), [(GROUPED, THEN), (INTERLEAVED, THEN), (SEQUENTIAL, WITHIN)], ids=lambda value: value.name
)
def test_auto_is_what_the_schedule_prefers(schedule, mode):
    plan = pipeline_plan(2, 4, schedule, recomputation_mode=pipelining.RecomputationMode.Auto)
    assert plan.recomputation is mode
    assert pipeline_plan(2, 4, schedule, recomputation_mode=mode) == plan


def test_a_plan_is_as_large_for_many_micro_batches_as_for_few(refused):
    loops = {}
    for schedule in pipelining.PipelineSchedule:
        few = pipeline_plan(4, 64, schedule)
        assert pipeline_plan(4, 2**20, schedule) == few.with_micro_batches(2**20)
        steady = few.section("steady")
        loops[schedule] = (len(steady.steps), steady.advance, steady.repeat)
    assert loops == {GROUPED: (1, 1, 57), INTERLEAVED: (2, 1, 61), SEQUENTIAL: (8, 1, 64)}
    refused(ValueError, "`micro_batches` is 6; this plan can have 7", pipeline_plan(4, 8).with_micro_batches, 6)


def test_a_sharded_model_is_a_sequential_pipeline_of_one_micro_batch():
    shards, pipeline = pipelining.sharded_plan([0, 1, 2]), pipeline_plan(3, 1, SEQUENTIAL)
    assert (shards.sections, shards.buffers) == (pipeline.sections, pipeline.buffers)
    pipelining.check_plan(pipelining.sharded_plan([5]))


def test_batch_serialization_is_on_one_ipu_and_multiplies_the_micro_batches_and_the_depth():
    assert pipeline_plan(3, 6).mapping == ((0,), (1,), (2,))
    plan = pipeline_plan(3, 3, SEQUENTIAL, batch_serialization_iterations=4)
    assert plan.mapping == ((0,), (0,), (0,))
    assert plan.micro_batches == 12
    assert {buffer.depth for buffer in plan.buffers if buffer.kind is not BufferKind.ACCUMULATOR} == {4}


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"stages": 1}, ValueError, "`stages` is 1"),
        ({"stages": 2.0}, TypeError, "`stages` must be a whole number"),
        ({"micro_batches": 2**31}, ValueError, "`micro_batches` must be from 1 to 2147483647"),
        ({"stages": 2**63}, ValueError, "`stages` must be from 1 to 1024, but is 9223372036854775808"),
        ({"device_mapping": [0, 1, 2, 65536]}, ValueError, r"`device_mapping\[3\]` is 65536; .* from 0 to 65535"),
        ({"repeat_count": 0}, ValueError, "`repeat_count` must be from 1"),
        ({"schedule": 0}, TypeError, "`schedule` must be a `PipelineSchedule`"),
        ({"training": 1}, TypeError, "`training` must be True or False"),
        ({"recomputation_mode": "Auto"}, TypeError, "`recomputation_mode` must be a `RecomputationMode`"),
        ({"device_mapping": 3}, TypeError, "`device_mapping` must be a list or a tuple"),
        ({"device_mapping": [0, 1]}, ValueError, "`device_mapping` has 2 items and `stages` is 4"),
        ({"device_mapping": [0, 1, 2, "3"]}, TypeError, r"`device_mapping\[3\]` must be an IPU's number"),
        ({"device_mapping": [0, 1, 2, -2]}, ValueError, "numbered from 0"),
        ({"device_mapping": [0, [1, 1], 2, 3]}, ValueError, "IPUs of their own"),
        ({"device_mapping": [0, [], 2, 3]}, ValueError, "empty list"),
        ({"batch_serialization_iterations": 2}, NotImplementedError, "with `PipelineSchedule.Sequential` only"),
        (
            {"batch_serialization_iterations": 2, "schedule": SEQUENTIAL, "device_mapping": [0, 0, 0, 1]},
            NotImplementedError,
            "all stages must be on one IPU",
        ),
        ({"schedule": INTERLEAVED, "device_mapping": [0, 1, 1, 0]}, NotImplementedError, "IPU 0 has several"),
        ({"schedule": INTERLEAVED, "recomputation_mode": WITHIN}, NotImplementedError, "Interleaved does not support"),
        ({"schedule": SEQUENTIAL, "recomputation_mode": THEN}, NotImplementedError, "use `Auto` or `RecomputeAnd"),
    ],
)
def test_a_bad_argument_is_refused_with_its_name(arguments, kind, words, refused):
    refused(kind, words, pipeline_plan, **{"stages": 4, "micro_batches": 8} | arguments)


def test_all_faults_of_a_call_are_told_together():
    with pytest.raises(ValueError, match="3 faults") as refused:
        pipeline_plan(4, -8, schedule=7, device_mapping=[0])  # pyright: ignore[reportArgumentType]
    for name in ("micro_batches", "schedule", "device_mapping"):
        assert f"`{name}" in str(refused.value)
    with pytest.raises(ValueError, match="is empty"):
        pipelining.sharded_plan([])
    with pytest.raises(ValueError, match="`micro_batches` must be from 1"):
        pipelining.sharded_plan([0], micro_batches=0)


@pytest.mark.parametrize(
    ("micro_batches", "arguments", "words"),
    [
        (12, {}, "multiple of 8, but is 12; use 8 or 16"),
        (6, {"training": False}, "multiple of 4, but is 6; use 4 or 8"),
        (3, {"schedule": INTERLEAVED}, "multiple of 4, but is 3; use 4"),
        (3, {"schedule": INTERLEAVED, "training": False, "device_mapping": [0, 1, 1, 0]}, "multiple of 2"),
    ],
)
def test_a_number_of_micro_batches_that_is_no_multiple_is_a_failed_precondition(micro_batches, arguments, words):
    from tensorflow.errors import FailedPreconditionError

    with pytest.raises(FailedPreconditionError, match=words):
        pipeline_plan(4, micro_batches, **arguments)


def test_stage_options_are_recorded_in_their_order():
    options = pipelining.PipelineStageOptions({"b": "1", "a": "2"}, slice_options={"c": "3"})
    record = options.get_proto()
    assert [(option.option, option.value) for option in record.convolution_options] == [("b", "1"), ("a", "2")]
    assert record.matmul_options == ()
    assert options == pipelining.PipelineStageOptions({"b": "1", "a": "2"}, None, {"c": "3"})
    assert repr(options) == "PipelineStageOptions(convolution_options={'b': '1', 'a': '2'}, slice_options={'c': '3'})"


def test_stage_options_are_checked():
    with pytest.raises(TypeError, match="`convolution_options` must be a dict") as refused:
        pipelining.PipelineStageOptions([("a", "b")], {"a": 1})  # pyright: ignore[reportArgumentType]
    assert "`matmul_options` must have strings" in str(refused.value)
    with pytest.raises(ValueError, match="`matmul_options` has `'availableMemoryProportion': 'abc'`.* from 0 to 1"):
        pipelining.PipelineStageOptions({"availableMemoryProportion": "0.6"}, {"availableMemoryProportion": "abc"})


COST = pipelining.StageCost(forward=1, backward=2, update=0, load=1, save=1, activation_bytes=100, weight_bytes=10)
ALWAYS, AFTER_FORWARD, EACH = pipelining.Liveness


def transfers(plan):
    """Returns all loads and saves of a plan, in their order."""
    return [
        str(task.instruction)
        for _, _, step in plan.walk()
        for task in step.tasks
        if isinstance(task.instruction, pipelining.Load | pipelining.Save)
    ]


def test_a_phase_that_follows_itself_stays_on_the_chip_and_inference_saves_nothing():
    assert transfers(serial_phases_plan([0])) == ["0LF0", "0SU"]
    named = transfers(serial_phases_plan([0, 0]))
    assert named == ["0LF0", "0SF0", "1LF0", "1SB0", "0LB0", "0SU", "1LU", "1SU"]
    for plan in (serial_phases_plan([0] * 3, training=False), parallel_phases_plan([0, 1, 0], training=False)):
        assert transfers(plan) == ["0LF0", "1LF0", "2LF0"]


def test_parallel_phases_transfer_while_the_other_group_works():
    serial = plan_cost(serial_phases_plan([0] * 6, training=False, micro_batches=4), COST)
    parallel = plan_cost(parallel_phases_plan([0, 1] * 3, training=False, micro_batches=4), COST)
    assert serial.time == 4 * 6 * 2
    assert parallel.time == 4 * 6 * 1 + 1  # Nothing overlaps with the first load.


def test_one_phase_at_a_time_is_on_the_chip_and_the_rest_off_it():
    serial = plan_cost(serial_phases_plan([0] * 3), COST).ipus[0]
    # The weights, the gradients and the activations of one phase.
    assert (serial.weight_bytes, serial.stash_bytes) == (20, 100)
    # The weights and gradients of each phase. The activations of the last phase never leave the chip.
    assert serial.off_chip_bytes == 3 * 20 + 2 * 100
    shards = plan_cost(pipelining.sharded_plan([0] * 3), COST).ipus[0]
    assert (shards.weight_bytes, shards.stash_bytes, shards.off_chip_bytes) == (60, 300, 0)


@pytest.mark.parametrize(
    ("make", "arguments", "kind", "words"),
    [
        (serial_phases_plan, {"device_mapping": []}, ValueError, "is empty"),
        (serial_phases_plan, {"device_mapping": 0}, TypeError, "must be a list or a tuple"),
        (serial_phases_plan, {"device_mapping": [[0, 1], [1, 2]]}, ValueError, "share one group of IPUs"),
        (serial_phases_plan, {"liveness": "always"}, TypeError, "`liveness` must be a `Liveness`, but is 'always'"),
        (parallel_phases_plan, {"device_mapping": [0, 0]}, ValueError, "IPU 0 to the phases 0 and 1"),
        (parallel_phases_plan, {"device_mapping": [0, 1, 2]}, ValueError, "every second phase shares"),
        (parallel_phases_plan, {"micro_batches": 0}, ValueError, "`micro_batches` must"),
        (parallel_phases_plan, {"training": None}, TypeError, "`training` must be"),
    ],
)
def test_bad_phases_are_refused(make, arguments, kind, words, refused):
    refused(kind, words, make, **{"device_mapping": [0, 0 if make is serial_phases_plan else 1]} | arguments)


def test_phases_that_stay_are_moved_less():
    always = serial_phases_plan([0] * 3, liveness=ALWAYS)
    assert transfers(always) == []
    assert "always live" in str(always)
    phases, shards = (plan_cost(plan, COST).ipus[0] for plan in (always, pipelining.sharded_plan([0] * 3)))
    assert (phases.weight_bytes, phases.stash_bytes) == (shards.weight_bytes, shards.stash_bytes) == (60, 300)
    assert phases.off_chip_bytes == 0
    forward = serial_phases_plan([0] * 3, micro_batches=2, liveness=AFTER_FORWARD)
    assert transfers(forward) == [f"{text}{batch}" for batch in range(2) for text in ("0SF", "1SF", "1LB", "0LB")]
    phases = plan_cost(forward, COST).ipus[0]
    # At the end, the weights and gradients of all phases are on the chip, and the activations of one phase at a time.
    assert (phases.weight_bytes, phases.stash_bytes) == (60, 100)
    assert phases.off_chip_bytes == 2 * (20 + 100)  # The last phase never leaves the chip.
    for plan in (always, forward):
        pipelining.check_plan(plan)


@pytest.mark.parametrize(("make", "mapping"), [(serial_phases_plan, [0] * 4), (parallel_phases_plan, [0, 1, 0, 1])])
def test_the_longer_phases_stay_the_more_is_on_the_chip_and_the_less_is_moved(make, mapping):
    cost = pipelining.StageCost(1e-3, activation_bytes=4e6, weight_bytes=2e6, state_bytes=1e6)
    plans = [make(mapping, micro_batches=3, liveness=liveness) for liveness in (ALWAYS, AFTER_FORWARD, EACH)]
    costs = [plan_cost(plan, cost, machine="GC200") for plan in plans]
    assert costs[0].transfer_share == 0
    assert costs[0].time < costs[1].time < costs[2].time
    assert costs[0].peak_bytes > costs[1].peak_bytes > costs[2].peak_bytes
    for plan in plans:
        pipelining.check_plan(plan)
        assert plan.phased
    rate = system_of("GC200").streaming_bytes_per_second
    if (
        make is serial_phases_plan
    ):  # Each micro-batch saves activations and sums of three phases, and loads weights too.
        moved = 3 * 3 * (2 * (4e6 + 2e6) + 2e6)
        assert costs[1].transfer_share == pytest.approx(moved / rate / costs[1].time)


def test_in_inference_phases_leave_after_forward_or_never():
    after_each, forward, always = (
        serial_phases_plan([0] * 3, training=False, liveness=liveness) for liveness in (EACH, AFTER_FORWARD, ALWAYS)
    )
    assert transfers(after_each) == transfers(forward) == ["0LF0", "1LF0", "2LF0"]
    assert transfers(always) == []
    assert [plan_cost(plan, COST).ipus[0].weight_bytes for plan in (after_each, forward, always)] == [10, 10, 30]
