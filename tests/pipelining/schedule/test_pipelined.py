"""Plans of pipelines: depths, sections, and every fault of their arguments."""

from __future__ import annotations

import pytest

from tensorflow_ipu.pipelining import (
    BufferKind,
    PipelineSchedule,
    PipelineStageOptions,
    RecomputationMode,
    check_plan,
    pipeline_plan,
    sharded_plan,
)

GROUPED, INTERLEAVED, SEQUENTIAL = PipelineSchedule
THEN = RecomputationMode.RecomputeThenBackpropagate
WITHIN = RecomputationMode.RecomputeAndBackpropagateInterleaved


def test_enums_have_the_members_of_the_contract():
    assert [(one.name, int(one)) for one in PipelineSchedule] == [("Grouped", 0), ("Interleaved", 1), ("Sequential", 2)]
    assert [one.name for one in RecomputationMode] == ["Auto", THEN.name, WITHIN.name]


@pytest.mark.parametrize("recompute", [None, RecomputationMode.Auto])
@pytest.mark.parametrize("stages", [2, 3, 4, 8, 16])
def test_stash_depth_of_each_schedule(stages, recompute):
    def depths(schedule):
        plan = pipeline_plan(stages, 2 * stages, schedule, recomputation_mode=recompute)
        return [plan.stash_depth(stage) for stage in range(stages)]

    assert depths(GROUPED) == [2 * (stages - 1 - stage) + 1 for stage in range(stages)]
    assert depths(INTERLEAVED) == [stages - stage for stage in range(stages)]
    assert depths(SEQUENTIAL) == [1] * stages


def test_inference_stashes_nothing():
    plan = pipeline_plan(4, 8, training=False)
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
    ("schedule", "mode"), [(GROUPED, THEN), (INTERLEAVED, THEN), (SEQUENTIAL, WITHIN)], ids=lambda one: one.name
)
def test_auto_is_what_the_schedule_prefers(schedule, mode):
    plan = pipeline_plan(2, 4, schedule, recomputation_mode=RecomputationMode.Auto)
    assert plan.recomputation is mode
    assert pipeline_plan(2, 4, schedule, recomputation_mode=mode) == plan


def test_inference_recomputes_nothing():
    assert pipeline_plan(2, 4, training=False, recomputation_mode=RecomputationMode.Auto).recomputation is None


@pytest.mark.parametrize("schedule", PipelineSchedule, ids=lambda one: one.name)
def test_a_plan_is_as_large_for_many_micro_batches_as_for_few(schedule):
    few, many = (pipeline_plan(4, count, schedule) for count in (16, 2**20))
    assert [section.steps for section in many.sections] == [section.steps for section in few.sections]
    assert many.buffers == few.buffers
    assert many == few.with_micro_batches(2**20)


def test_the_steady_loop_of_each_schedule():
    loops = {
        schedule: (len(steady.steps), steady.advance, steady.repeat)
        for schedule in PipelineSchedule
        if (steady := pipeline_plan(4, 64, schedule).section("steady"))
    }
    assert loops == {GROUPED: (1, 1, 57), INTERLEAVED: (2, 1, 61), SEQUENTIAL: (8, 1, 64)}


def test_a_sharded_model_is_a_sequential_pipeline_of_one_micro_batch():
    shards, pipeline = sharded_plan([0, 1, 2]), pipeline_plan(3, 1, SEQUENTIAL)
    assert (shards.sections, shards.buffers) == (pipeline.sections, pipeline.buffers)
    check_plan(sharded_plan([5]))


def test_default_mapping_is_an_ipu_a_stage_and_one_ipu_with_batch_serialization():
    assert pipeline_plan(3, 6).mapping == ((0,), (1,), (2,))
    assert pipeline_plan(3, 6, SEQUENTIAL, batch_serialization_iterations=2).mapping == ((0,), (0,), (0,))


def test_batch_serialization_multiplies_the_micro_batches_and_the_depth():
    plan = pipeline_plan(2, 3, SEQUENTIAL, batch_serialization_iterations=4)
    assert plan.micro_batches == 12
    assert {buffer.depth for buffer in plan.buffers if buffer.kind is not BufferKind.ACCUMULATOR} == {4}


def test_micro_batches_that_no_repeat_reaches_are_refused():
    plan = pipeline_plan(4, 8)
    with pytest.raises(ValueError, match="`micro_batches` is 6; this plan can have 7"):
        plan.with_micro_batches(6)


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"stages": 1}, ValueError, "`stages` is 1"),
        ({"stages": 2.0}, TypeError, "`stages` must be a whole number"),
        ({"stages": True}, TypeError, "`stages` must be a whole number"),
        ({"micro_batches": 0}, ValueError, "`micro_batches` must be from 1"),
        ({"micro_batches": 2**31}, ValueError, "`micro_batches` must be from 1 to 2147483647"),
        ({"stages": 2**63}, ValueError, "`stages` must be from 1 to 1024, but is 9223372036854775808"),
        (
            {"micro_batches": 2**30, "batch_serialization_iterations": 2, "schedule": PipelineSchedule.Sequential},
            ValueError,
            "`micro_batches` is 1073741824 and `batch_serialization_iterations` is 2: 2147483648 micro-batches in all",
        ),
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
def test_a_bad_argument_is_refused_with_its_name(arguments, kind, words):
    with pytest.raises(kind, match=words):
        pipeline_plan(**{"stages": 4, "micro_batches": 8} | arguments)


def test_all_faults_of_a_call_are_told_together():
    with pytest.raises(ValueError, match="3 faults") as refused:
        pipeline_plan(4, -8, schedule=7, device_mapping=[0])  # pyright: ignore[reportArgumentType]
    for name in ("micro_batches", "schedule", "device_mapping"):
        assert f"`{name}" in str(refused.value)


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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"device_mapping": []}, "is empty"),
        ({"device_mapping": [0], "micro_batches": 0}, "`micro_batches` must be from 1"),
    ],
)
def test_a_bad_sharded_model_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        sharded_plan(**arguments)


def test_stage_options_are_recorded_in_their_order():
    options = PipelineStageOptions({"b": "1", "a": "2"}, slice_options={"c": "3"})
    record = options.get_proto()
    assert [(one.option, one.value) for one in record.convolution_options] == [("b", "1"), ("a", "2")]
    assert record.matmul_options == ()
    assert options == PipelineStageOptions({"b": "1", "a": "2"}, None, {"c": "3"})
    assert repr(options) == "PipelineStageOptions(convolution_options={'b': '1', 'a': '2'}, slice_options={'c': '3'})"


def test_all_faults_of_stage_options_are_told_together():
    with pytest.raises(TypeError, match="`convolution_options` must be a dict") as refused:
        PipelineStageOptions([("a", "b")], {"a": 1})  # pyright: ignore[reportArgumentType]
    assert "`matmul_options` must have strings" in str(refused.value)


def test_share_of_memory_in_stage_options_is_checked():
    with pytest.raises(ValueError, match="`matmul_options` has `'availableMemoryProportion': 'abc'`.* from 0 to 1"):
        PipelineStageOptions({"availableMemoryProportion": "0.6"}, {"availableMemoryProportion": "abc"})
