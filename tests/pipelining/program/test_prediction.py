"""Predictions of pipelines on a machine: the costs of stages, and the report of the IPUs."""

import dataclasses
from typing import Any

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import pipelining
from tensorflow_ipu.machine import GC200, Report, systems
from tensorflow_ipu.pipelining import OptimizerFunctionOutput, PhasedExecution, RecomputationMode, StageCost

BATCH, WIDTH, STAGES, COUNT = 16, 64, 3, 12
WEIGHTS = 4 * WIDTH * WIDTH
INPUT = 4 * BATCH * WIDTH


def program_of(strategy, training=True, batch=BATCH, **options):
    """Returns a program of three stages, of which the middle one is four times as deep, and its variables."""
    with strategy.scope():
        variables = [tf.Variable(tf.eye(WIDTH)) for _ in range(STAGES)]
        optimizer = tf.compat.v1.train.AdamOptimizer(0.01)
        dataset = tf.data.Dataset.from_tensors(tf.ones([batch, WIDTH])).repeat()
        infeed, outfeed = ipu.IPUInfeedQueue(dataset), ipu.IPUOutfeedQueue()

    def make(stage):
        def inner(x):
            for _ in range(4 if stage == 1 else 1):
                x = tf.tanh(x @ variables[stage])
            return x if stage < STAGES - 1 else tf.reduce_mean(x)

        return inner

    if training:
        options["optimizer_function"] = lambda loss: OptimizerFunctionOutput(optimizer, loss)

    @tf.function
    def program():
        pipelining.pipeline(
            [make(stage) for stage in range(STAGES)], COUNT, infeed_queue=infeed, outfeed_queue=outfeed, **options
        )

    return program, variables


@pytest.fixture(scope="module")
def training():
    """Returns a report of a recomputing pipeline on two replicas of four IPUs, the pipeline, and its program."""
    config = ipu.IPUConfig()
    config.auto_select_ipus = 8
    config.configure_ipu_system()
    strategy = ipu.IPUStrategy()
    program, variables = program_of(strategy, recomputation_mode=RecomputationMode.Auto)
    made = strategy.report(program, machine="Bow Pod16")
    return made, pipelining.last_pipeline(), (program, variables)


def test_a_report_has_the_memory_of_each_ipu(training):
    made, pipeline, _ = training
    assert (made.replicas, made.ipus_per_replica, made.fits) == (2, 3, True)
    for number, memory in enumerate(made.memories):
        assert memory.ipu == number
        assert (memory.variables, memory.accumulators) == (WEIGHTS, WEIGHTS)
        assert memory.optimizer == pytest.approx(2 * WEIGHTS, abs=10)  # Two moments, and two scalars of all stages.
        assert memory.off_chip == 0
        assert memory.data > 0
        assert max(size for _, size in memory.liveness) == pytest.approx(memory.data, abs=2)
        assert memory.largest
        assert not any("PartitionedCall" in name for name, _ in memory.largest)
    for stage in range(STAGES - 1):
        # Inputs that wait for their backward pass, and the recomputed activations of one micro-batch.
        assert made.memories[stage].stash >= (pipeline.plan.stash_depth(stage) + 1) * INPUT
    assert made.memories[1].stash > made.memories[0].stash
    assert [memory.feeds for memory in made.memories] == [INPUT, 0, 4]


def test_a_report_takes_its_time_from_the_plan(training):
    made, pipeline, (_, variables) = training
    costs: Any = pipelining.predicted_stage_costs(pipeline, "Bow Pod16", replicas=2)
    cost = pipelining.plan_cost(pipeline.plan, costs, machine="Bow Pod16")
    assert made.timeline.seconds == pytest.approx(cost.time)
    assert made.timeline.bubble == pytest.approx(cost.bubble_share)
    assert made.steps == COUNT
    host = COUNT * (INPUT + 4) / systems()["Bow Pod16"].host_bytes_per_second
    assert made.seconds == pytest.approx(cost.time + host)
    assert made.throughput(BATCH) == pytest.approx(2 * BATCH * COUNT / made.seconds)
    # The deepest stage takes the longest time, and a backward pass takes longer than a forward pass.
    assert max(costs, key=lambda each: each.forward) is costs[1]
    assert all(each.backward > each.forward > 0 for each in costs)
    for each, traced in zip(costs, pipeline.stage_costs, strict=True):
        assert (each.activation_bytes, each.weight_bytes) == (traced.activation_bytes, traced.weight_bytes)
    assert pipelining.compare_plans(STAGES, COUNT, costs, machine="Bow Pod16").best is not None
    assert all((variable.numpy() == tf.eye(WIDTH).numpy()).all() for variable in variables)  # Nothing was run.
    with pytest.raises(ValueError, match="`replicas` must be 1 or more, but is 0"):
        pipelining.predicted_stage_costs(pipeline, replicas=0)


def test_a_report_names_passes_lines_and_tasks(training, tmp_path):
    made, *_ = training
    products = [row for row in made.operations if row.kind == "dot"]
    assert {row.part for row in products} >= {"stage 0 forward", "stage 0 recompute", "stage 1 backward"}
    assert [row for row in products if not row.source.startswith("test_prediction.py:")] == []
    assert {row.ipu for row in products} == {0, 1, 2}
    forward = [row for row in products if row.part == "stage 1 forward"]
    assert [row.count for row in forward] == [COUNT] * 4
    assert {row.part for row in made.operations if row.kind == "all-reduce"} == {"update"}
    kinds = {task.kind for task in made.timeline.tasks}
    assert kinds == {"forward", "recompute", "backward", "update", "exchange"}
    assert max(task.end for task in made.timeline.tasks) <= made.timeline.seconds * (1 + 1e-9)
    text = str(made)
    assert "memory of IPU 2" in text
    assert "a pass of 12 micro-batches" in text
    made.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json") == made


def test_optimizer_state_that_is_offloaded_is_beside_the_chip_and_takes_time(strategy, configure):
    configure(8)
    options = {"offload_weight_update_variables": True, "replicated_optimizer_state_sharding": True}
    program, _ = program_of(strategy, **options)
    made = strategy.report(program, machine="Bow Pod16")
    assert [memory.optimizer for memory in made.memories] == [0] * STAGES
    assert made.memory.off_chip == pytest.approx(WEIGHTS, abs=10)  # Half of two moments.
    pipeline = pipelining.last_pipeline()
    whole, sharded = (pipelining.predicted_stage_costs(pipeline, "Bow", replicas=count)[0] for count in (1, 2))
    assert isinstance(whole, StageCost)
    assert isinstance(sharded, StageCost)
    assert whole.off_chip_bytes == pytest.approx(2 * sharded.off_chip_bytes, abs=1)
    (row, *others) = [row for row in made.operations if row.kind == "streaming"]
    rate = systems()["Bow Pod16"].streaming_bytes_per_second
    assert row.part == "stage 0 update"
    assert row.links == pytest.approx(2 * sharded.off_chip_bytes / rate)
    assert len(others) == STAGES - 1


def test_inference_keeps_no_gradients_and_phases_load_their_weights(strategy):
    options = {"pipeline_schedule": PhasedExecution.Serial, "device_mapping": [0] * STAGES}
    made = strategy.report(program_of(strategy, training=False, **options)[0], machine="GC200")
    (memory,) = made.memories
    assert (memory.accumulators, memory.optimizer) == (0, 0)
    assert memory.variables == WEIGHTS
    assert memory.off_chip == STAGES * WEIGHTS
    assert {task.kind for task in made.timeline.tasks} == {"load", "forward"}
    loads = [(row.name, row.count) for row in made.operations if row.kind == "streaming"]
    assert loads == [(f"stage {stage} forward/load", COUNT) for stage in range(STAGES)]
    rate = systems()["IPU-M2000"].streaming_bytes_per_second
    (links,) = {row.links for row in made.operations if row.kind == "streaming"}
    assert links == pytest.approx(COUNT * WEIGHTS / rate)
    trained = strategy.report(program_of(strategy, pipeline_schedule=PhasedExecution.Serial)[0], machine="GC200")
    assert "`compare_plans`" in by_change(trained, "recomputation, schedules, stages").why
    assert by_change(trained, "float16").speed > 0


def by_change(made, words):
    """Returns the only answer, suggestion or not, whose change begins with this text."""
    assert made.asks is not None
    (found,) = [each for each in made.asks(made, False) if each.change.startswith(words)]
    return found


def test_advice_on_a_pipeline_is_that_of_other_plans(training):
    made, pipeline, _ = training
    plan = pipeline.plan
    costs = pipelining.predicted_stage_costs(pipeline, "Bow Pod16", replicas=2)
    host = made.part_seconds("host") / COUNT

    def speed_of(other, stages=costs):
        cost = pipelining.plan_cost(other, stages, machine="Bow Pod16")
        return pytest.approx(made.step_seconds / (cost.time_per_micro_batch + host))

    kept = by_change(made, "no recomputation")
    before, after = (
        pipelining.plan_cost(each, costs, machine="Bow Pod16")
        for each in (plan, pipelining.pipeline_plan(STAGES, COUNT))
    )
    assert kept.speed == speed_of(after.plan)
    grown = [new.on_chip_bytes - old.on_chip_bytes for new, old in zip(after.ipus, before.ipus, strict=True)]
    sizes = [memory.high + more for memory, more in zip(made.memories, grown, strict=True)]
    assert kept.memory == pytest.approx(max(sizes), abs=2)
    mode = RecomputationMode.RecomputeThenBackpropagate
    interleaved = pipelining.pipeline_plan(
        STAGES, COUNT, pipelining.PipelineSchedule.Interleaved, recomputation_mode=mode
    )
    assert by_change(made, "`PipelineSchedule.Interleaved`").speed == speed_of(interleaved)
    doubled = pipelining.pipeline_plan(STAGES, 2 * COUNT, recomputation_mode=plan.recomputation)
    assert by_change(made, f"`gradient_accumulation_count` of {2 * COUNT}").speed == speed_of(doubled)
    more = by_change(made, "one more stage")
    assert "stage 1, the slowest" in more.change
    assert "`gradient_accumulation_count` of 16, a multiple of 8" in more.change
    assert more.speed > 1  # The deep stage holds all others up.
    assert by_change(made, "other micro-batches").why


def test_advice_on_a_pipeline_reads_its_passes_again(training):
    made, pipeline, _ = training
    halved = by_change(made, "float16")
    again = made.again(halved=True)
    assert halved.speed == pytest.approx(made.step_seconds / again.step_seconds)
    assert [memory.variables for memory in again.memories] == [WEIGHTS // 2] * STAGES
    assert again.memories[0].optimizer == pytest.approx(made.memories[0].optimizer / 2, abs=1)
    assert again.memories[0].stash == pytest.approx(made.memories[0].stash / 2, abs=8)
    assert again.part_seconds("host") == pytest.approx(made.part_seconds("host") / 2)
    tiles = by_change(made, "`io_tiles.num_io_tiles` of 64")
    assert tiles.speed > 1
    proportions = [each for each in made.asks(made, False) if "availableMemoryProportion" in each.change]
    assert all("in place of 0.6" in each.change for each in proportions)
    assert {row.part for row in again.operations if row.part} == {row.part for row in made.operations if row.part}
    del pipeline


def test_a_pipeline_that_does_not_fit_has_a_recipe_of_float16_and_recomputation(strategy, configure):
    configure(8)
    chip = dataclasses.replace(GC200, tiles=2, tile_bytes=400 * 1024)
    recipe = strategy.report(program_of(strategy, batch=256)[0], machine=chip).advice().recipe
    assert recipe is not None
    mode = RecomputationMode.RecomputeThenBackpropagate
    first, second = recipe.steps
    assert first.change.startswith("float16")
    assert second.change == f"recomputation (`RecomputationMode.{mode.name}`)"
    assert (first.verdict, second.verdict) == ("may fit", "fits")
    recomputing = strategy.report(program_of(strategy, batch=256, recomputation_mode=mode)[0], machine=chip)
    assert recomputing.again is not None
    assert second.memory == pytest.approx(recomputing.again(halved=True).memory.high, rel=0.1)


def test_what_options_have_off_the_chip_is_told_with_the_time_that_it_takes(strategy, configure):
    configure(8)
    names = ("offload_activations", "offload_gradient_accumulation_buffers", "replicated_weight_sharding")
    program, _ = program_of(strategy, offload_weights=True, **dict.fromkeys(names, True))
    made = strategy.report(program, machine="Bow Pod16")
    depths = [pipelining.last_pipeline().plan.stash_depth(stage) for stage in range(STAGES)]
    first, inner, last = made.memories
    # Half of the weights, their accumulators, and the activations that wait for a backward pass, except the last stage's.
    assert first.off_chip >= WEIGHTS // 2 + WEIGHTS + depths[0] * INPUT
    assert inner.off_chip > first.off_chip
    assert last.off_chip == WEIGHTS // 2 + WEIGHTS
    for memory in made.memories:
        assert (memory.variables, memory.accumulators) == (WEIGHTS, WEIGHTS)  # Those of the pass that runs.
    assert inner.stash < (depths[1] - 1) * inner.off_chip / depths[1]
    rows = {(row.part, row.kind): row for row in made.operations if row.kind in ("streaming", "all-gather")}
    assert len(rows) == 3 * 3 + 2 * 3  # Of each stage each pass and the update, which gathers nothing.
    rate = systems()["Bow Pod16"].streaming_bytes_per_second
    backward = rows["stage 2 backward", "streaming"]
    assert (backward.count, backward.ipu) == (COUNT, 2)
    assert backward.links == pytest.approx(COUNT * (2 * WEIGHTS + WEIGHTS / 2) / rate)
    plan = pipelining.last_pipeline().plan
    costs = pipelining.predicted_stage_costs(pipelining.last_pipeline(), "Bow Pod16", replicas=2)
    assert made.timeline.seconds == pytest.approx(pipelining.plan_cost(plan, costs, machine="Bow Pod16").time)
    # In advice on other plans, the same buffers are off the chip.
    other = pipelining.pipeline_plan(STAGES, 2 * COUNT).offloaded(**plan.offloads)
    seconds = pipelining.plan_cost(other, costs, machine="Bow Pod16").time_per_micro_batch
    told = by_change(made, f"`gradient_accumulation_count` of {2 * COUNT}")
    assert told.speed == pytest.approx(made.step_seconds / (seconds + made.part_seconds("host") / COUNT))


def test_loops_of_stages_are_counted_and_those_that_only_running_counts_are_given(strategy, configure, refused):
    configure(2)
    with strategy.scope():
        weights = tf.Variable(tf.eye(WIDTH))
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.01)
        infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors(tf.ones([BATCH, WIDTH])).repeat())
        outfeed = ipu.IPUOutfeedQueue()

    def report(first, training=False, counts=None, **options):
        if training:
            options["optimizer_function"] = lambda loss: OptimizerFunctionOutput(optimizer, loss)

        @tf.function
        def program():
            stages = [first, lambda x: tf.reduce_mean(x)]
            pipelining.pipeline(stages, 8, infeed_queue=infeed, outfeed_queue=outfeed, **options)

        return strategy.report(program, machine="GC200", trip_counts=counts)

    def products(made, part):
        return [row.count for row in made.operations if row.kind == "dot" and row.part == part]

    made = report(lambda x: ipu.loops.repeat(5, lambda x: tf.tanh(x @ weights), [x]), training=True)
    assert products(made, "stage 0 forward") == [8 * 5]
    assert products(made, "stage 0 backward") == [8 * 5] * 3  # Forward once more, and two products of gradients.
    assert not any("loop" in note for note in made.assumptions)

    def until_large(x):
        return tf.while_loop(lambda x: tf.reduce_sum(x) < 1e3, lambda x: (tf.tanh(x @ weights) + 1.0,), [x])[0]

    made = report(until_large)
    assert products(made, "stage 0 forward") == [8]
    (note,) = [note for note in made.assumptions if "loop" in note]
    assert "`trip_counts={'stage 0 forward/while': n}`" in note
    for key in ("stage 0 forward/while", "*"):
        made = report(until_large, counts={key: 7})
        assert products(made, "stage 0 forward") == [8 * 7]
        assert not any("loop" in note for note in made.assumptions)
    for counts, words in (
        ({"while": 7}, "`trip_counts` names `while`: name the pass and the loop"),
        ({"stage 0 forward/other": 7}, "names `stage 0 forward/other`, but the program has no loop of this name"),
    ):
        refused(ValueError, words, report, until_large, counts=counts)
