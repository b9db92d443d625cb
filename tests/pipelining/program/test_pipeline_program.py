"""The program of a pipeline: its size, its memory, its recorded plan, and the measured times of its stages."""

import gc
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.compiler.xla.service import hlo_pb2

import tensorflow_ipu as ipu
from tensorflow_ipu import pipelining
from tensorflow_ipu.pipelining import OptimizerFunctionOutput, PipelineSchedule, RecomputationMode, StageCost, plan_cost
from tensorflow_ipu.pipelining.execution import window_of

GROUPED, INTERLEAVED, SEQUENTIAL = PipelineSchedule
BATCH, WIDTH, LAYERS = 256, 32, 2


def dense(x, weights):
    return tf.tanh(x @ weights)


def elementwise(x, weights):
    """Returns a result that XLA computes twice rather than storing it."""
    return tf.tanh(x * weights[0])


def program_of(strategy, count, stages=3, *, fed=False, layer=dense, rows=BATCH, **options):
    """Returns a program that trains a pipeline whose activations are far larger than its weights."""
    with strategy.scope():
        variables = [[tf.Variable(tf.eye(WIDTH)) for _ in range(LAYERS)] for _ in range(stages)]
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.01)
        dataset = tf.data.Dataset.from_tensors(tf.ones([rows, WIDTH])).repeat()
        infeed, outfeed = ipu.IPUInfeedQueue(dataset), ipu.IPUOutfeedQueue()
        if fed:
            infeed.initializer  # noqa: B018  (The access starts it.)

        def make(stage):
            def inner(x):
                for variable in variables[stage]:
                    x = layer(x, variable)
                return x if stage < stages - 1 else tf.reduce_mean(x)

            return inner

        @tf.function(jit_compile=True)
        def program():
            pipelining.pipeline(
                [make(stage) for stage in range(stages)],
                count,
                infeed_queue=infeed,
                outfeed_queue=outfeed,
                optimizer_function=lambda loss: OptimizerFunctionOutput(optimizer, loss),
                **options,
            )

    return program


def compiled(strategy, program, stage):
    with strategy.scope():  # The context in which `strategy.run` traces.
        return strategy.extended.call_on_device(lambda: program.experimental_get_compiler_ir()(stage=stage), (), {})


def hlo_of(strategy, program):
    """Returns the optimized HLO of the program, as a protocol buffer message."""
    message: Any = hlo_pb2.HloProto  # pyright: ignore[reportAttributeAccessIssue]
    return message.FromString(compiled(strategy, program, "optimized_hlo_proto_serialized"))


def temporary_bytes(hlo):
    """Returns the bytes that the program allocates in addition to its arguments, results and constants."""
    return sum(
        allocation.size
        for allocation in hlo.buffer_assignment.buffer_allocations
        if not (allocation.is_entry_computation_parameter or allocation.maybe_live_out or allocation.is_constant)
    )


def copied_from_a_loop(hlo, shape):
    """Returns the number of instructions that copy a loop-carried tensor of this shape; the program must have such."""
    instructions = {
        instruction.id: instruction for part in hlo.hlo_module.computations for instruction in part.instructions
    }
    shaped = [instruction for instruction in instructions.values() if list(instruction.shape.dimensions) == shape]
    assert shaped
    # Before the loop, zeros are copied to the rings. This does not count.
    copied = [instructions[instruction.operand_ids[0]].opcode for instruction in shaped if instruction.opcode == "copy"]
    return copied.count("get-tuple-element")


def assert_no_ring_is_copied_in_the_loop(hlo, rows=BATCH):
    assert copied_from_a_loop(hlo, [pipelining.last_pipeline().plan.stash_depth(0), rows, WIDTH]) == 0


def predicted_bytes(pipeline):
    """Returns the bytes of stashes, links and accumulators of a plan.

    Activations that are recomputed within the backward pass count for one stage at a time.
    """
    stages: Any = pipeline.stage_costs  # No stage has several parts.
    stashed, recomputed = 0, [0]
    for buffer in pipeline.plan.buffers:
        cost = stages[buffer.stage]
        stashed += buffer.depth * {"activations": cost.activation_bytes, "inputs": cost.input_bytes}.get(
            buffer.kind.value, 0
        )
        if buffer.kind is pipelining.BufferKind.RECOMPUTED:
            recomputed.append(cost.activation_bytes)
    within = pipeline.plan.recomputation is RecomputationMode.RecomputeAndBackpropagateInterleaved
    ipus = plan_cost(pipeline.plan, stages).ipus
    links_and_accumulators = sum(ipu_cost.link_bytes + ipu_cost.weight_bytes / 2 for ipu_cost in ipus)
    return stashed + (max(recomputed) if within else sum(recomputed)) + links_and_accumulators


WAYS = [
    (GROUPED, None),
    (INTERLEAVED, None),
    (GROUPED, RecomputationMode.RecomputeThenBackpropagate),
    (GROUPED, RecomputationMode.RecomputeAndBackpropagateInterleaved),
]


def test_the_memory_of_a_program_falls_as_its_plan_says_and_no_ring_is_copied_in_the_loop(strategy):
    allocated, predicted = [], []
    for schedule, mode in WAYS:
        program = program_of(strategy, 12, pipeline_schedule=schedule, recomputation_mode=mode)
        hlo, pipeline = hlo_of(strategy, program), pipelining.last_pipeline()
        allocated.append(temporary_bytes(hlo))
        predicted.append(predicted_bytes(pipeline))
        if mode is None:
            assert_no_ring_is_copied_in_the_loop(hlo)
    assert allocated[0] > allocated[1] > allocated[2] > allocated[3]
    for (schedule, mode), bytes_allocated, bytes_predicted in zip(WAYS, allocated, predicted, strict=True):
        # A backward pass reads a copy of a place of the ring. Without recomputation, several backward passes overlap.
        read = BATCH * WIDTH * 4 * (window_of(3) if mode is None else 1)
        assert bytes_allocated == pytest.approx(bytes_predicted + read, rel=0.2), (schedule, mode)


def test_the_size_of_a_program_does_not_depend_on_the_number_of_micro_batches(strategy):
    sizes = []
    for count in (12, 600):
        text = compiled(strategy, program_of(strategy, count), "hlo_no_metadata")
        sizes.append(text.count("\n"))
    assert sizes[0] == sizes[1]


def kernels_of(hlo):
    """Returns the kernels that XLA compiles for fusions. Fusions that differ in names only share a kernel."""
    called = {
        number
        for part in hlo.hlo_module.computations
        for instruction in part.instructions
        if instruction.opcode == "fusion"
        for number in instruction.called_computation_ids
    }
    return {_anonymous(part) for part in hlo.hlo_module.computations if part.id in called}


def _anonymous(computation):
    numbers = {instruction.id: index for index, instruction in enumerate(computation.instructions)}
    return tuple(
        (
            instruction.opcode,
            instruction.shape.SerializeToString(),
            instruction.literal.SerializeToString(),
            instruction.comparison_direction,
            tuple(numbers[operand] for operand in instruction.operand_ids),
        )
        for instruction in computation.instructions
    )


def test_stages_that_are_alike_share_their_kernels_whatever_their_depth_in_the_pipeline(strategy):
    few, many = (hlo_of(strategy, program_of(strategy, 24, stages, device_mapping=[0] * stages)) for stages in (3, 6))
    computations = [len(hlo.hlo_module.computations) for hlo in (few, many)]
    assert computations[1] > 1.5 * computations[0]
    assert len(kernels_of(many)) <= len(kernels_of(few)) + 2
    instructions = [instruction for part in many.hlo_module.computations for instruction in part.instructions]
    opcodes = {instruction.opcode for instruction in instructions}
    assert not opcodes & {"dynamic-slice", "dynamic-update-slice"}
    # Fences are loops. XLA would compile a small loop to a separate function.
    assert not any("xla_cpu_small_call" in instruction.frontend_attributes.map for instruction in instructions)


def test_no_ring_of_what_xla_would_rather_compute_twice_and_no_large_tensor_is_copied_in_the_loop(strategy):
    rows = (256 << 10) // 4 // WIDTH  # Tensors that instructions pass to each other have 256 KiB.
    hlo = hlo_of(strategy, program_of(strategy, 12, layer=elementwise, rows=rows))
    assert_no_ring_is_copied_in_the_loop(hlo, rows)
    # The last stage stashes its input, which is the output of the stage before.
    assert copied_from_a_loop(hlo, [rows, WIDTH]) == 1


def test_pipelines_of_a_program_are_those_that_it_calls(strategy):
    first = program_of(strategy, 6, name="first")
    second = program_of(strategy, 6, name="second", pipeline_schedule=SEQUENTIAL)
    assert pipelining.pipelines_of(first) == ()
    concrete = first.get_concrete_function()
    second.get_concrete_function()
    (found,) = pipelining.pipelines_of(first)
    assert (found.name, found.plan.schedule) == ("first", GROUPED)
    assert pipelining.pipelines_of(concrete) == (found,)
    assert pipelining.last_pipeline().name == "second"


def test_a_plan_outlives_its_program_and_the_program_is_not_kept(strategy, refused):
    program = program_of(strategy, 6)
    program.get_concrete_function()
    pipeline = pipelining.last_pipeline()
    assert len(pipeline.parts()) == 3
    del program
    gc.collect()
    refused(RuntimeError, "no longer exists", pipeline.parts)
    assert pipelining.last_pipeline().plan.stages == 3


def test_stages_of_a_pipeline_that_another_thread_traced_are_measured_alone_and_cost_the_plan(strategy, within):
    program = program_of(strategy, 6, fed=True, recomputation_mode=RecomputationMode.Auto)
    within(300, lambda: strategy.run(program))
    (pipeline,) = pipelining.pipelines_of(program)
    assert pipeline.plan.micro_batches == 6
    costs = pipelining.measured_stage_costs(pipeline, runs=3)
    assert len(costs) == 3
    for cost, traced in zip(costs, pipeline.stage_costs, strict=True):
        assert isinstance(cost, StageCost)
        assert isinstance(traced, StageCost)
        assert cost.backward is not None
        assert min(cost.forward, cost.backward) >= 0  # On a busy machine, they may be below the time of an empty call.
        assert (cost.activation_bytes, cost.weight_bytes) == (traced.activation_bytes, traced.weight_bytes)
    assert plan_cost(pipeline.plan, costs).time >= 0
    assert pipelining.compare_plans(3, 6, costs).best is not None
    with pytest.raises(ValueError, match="runs"):
        pipelining.measured_stage_costs(pipeline, runs=0)
