"""Costs of plans compared with closed formulas, arguments of costs, comparisons of plans, and cuts of models."""

import dataclasses
import itertools

import pytest

from tensorflow_ipu import pipelining
from tensorflow_ipu.machine import systems
from tensorflow_ipu.pipelining import RecomputationMode, StageCost, balance, compare_plans, pipeline_plan, plan_cost

GROUPED, INTERLEAVED, SEQUENTIAL = pipelining.PipelineSchedule
THEN = RecomputationMode.RecomputeThenBackpropagate
WITHIN = RecomputationMode.RecomputeAndBackpropagateInterleaved
EVEN = StageCost(forward=1, backward=2, update=0)
SYSTEM = systems()["IPU-M2000"]
STREAMED = SYSTEM.streaming_bytes_per_second


def all_shares(cost):
    return cost.utilisation + cost.recompute_share + cost.transfer_share + cost.bubble_share + cost.exchange_share


@pytest.mark.parametrize("stages", [2, 4, 6])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_time_of_each_schedule_with_even_stages(stages, rounds):
    count = 2 * stages * rounds

    def time(schedule, mode=None):
        return plan_cost(pipeline_plan(stages, count, schedule, recomputation_mode=mode), EVEN).time

    # The ramps have only forward or only backward passes, and the other steps have both.
    assert time(GROUPED) == 3 * count + 3 * (stages - 1)
    # Each step with a backward pass is as long as the backward pass.
    assert time(INTERLEAVED) == 4 * count + 3 * stages - 4
    assert time(SEQUENTIAL) == 3 * stages * count
    # A recomputation fits into the time of the backward passes of other IPUs.
    assert time(INTERLEAVED, THEN) == time(INTERLEAVED)


def test_shares_of_sequential_uneven_repeated_and_idle_plans():
    cost = plan_cost(pipeline_plan(4, 8, SEQUENTIAL), EVEN)
    assert cost.utilisation == pytest.approx(0.25)
    assert cost.bubble_share == pytest.approx(0.75)
    assert cost.section_times == {"ramp up": 0, "steady": 96, "ramp down": 0, "update": 0}
    uneven = plan_cost(pipeline_plan(3, 60), [EVEN, StageCost(3, 6, update=0), EVEN])
    assert uneven.time == pytest.approx(60 * 9, rel=0.1)
    assert uneven.ipus[1].busy == 60 * 9
    assert uneven.bubble_share == pytest.approx(1 - 5 / 9, rel=0.1)
    once, thrice = (plan_cost(pipeline_plan(2, 4, repeat_count=count)) for count in (1, 3))
    assert thrice.total_time == 3 * once.total_time == 3 * thrice.time
    nothing = plan_cost(pipeline_plan(2, 4), StageCost(0, 0, update=0))
    assert (nothing.time, nothing.utilisation, nothing.bubble_share) == (0, 0, 0)


def test_stash_bytes_are_depth_times_bytes():
    bytes_of = StageCost(activation_bytes=100, input_bytes=10, weight_bytes=1)

    def stash(schedule, mode=None, mapping=None):
        plan = pipeline_plan(4, 8, schedule, recomputation_mode=mode, device_mapping=mapping)
        return [ipu.stash_bytes for ipu in plan_cost(plan, bytes_of).ipus]

    assert stash(GROUPED) == [700, 500, 300, 100]
    assert stash(INTERLEAVED) == [400, 300, 200, 100]
    assert stash(SEQUENTIAL) == [100, 100, 100, 100]
    assert stash(GROUPED, THEN) == [170, 150, 130, 100]
    assert stash(INTERLEAVED, THEN) == [140, 130, 120, 100]
    # Activations that are recomputed within the backward pass are in memory for one stage at a time.
    assert [stash(GROUPED, mode, [0, 0, 0, 1])[0] for mode in (THEN, WITHIN)] == [150 + 300, 150 + 100]


def test_other_bytes_of_an_ipu_and_costs_of_parts():
    costs = [StageCost(weight_bytes=5, input_bytes=7), StageCost(weight_bytes=50, input_bytes=70)]
    cost = plan_cost(pipeline_plan(2, 4), costs)
    # In training, a stage also has gradients as large as its weights, and buffers for the data of its neighbours.
    assert [(ipu.weight_bytes, ipu.link_bytes) for ipu in cost.ipus] == [(10, 70), (100, 70)]
    assert [ipu.weight_bytes for ipu in plan_cost(pipeline_plan(2, 2, training=False), costs).ipus] == [5, 50]
    assert cost.peak_bytes == 170
    sizes = {"state_bytes": 2, "off_chip_bytes": 50, "temporary_bytes": 11, "code_bytes": 4}
    with_all_sizes = StageCost(weight_bytes=5, accumulator_bytes=3, **sizes)
    (ipu,) = plan_cost(pipeline_plan(2, 4, device_mapping=[0, 0]), with_all_sizes).ipus
    assert ipu.weight_bytes == 2 * (5 + 3 + 2)
    assert ipu.on_chip_bytes == ipu.weight_bytes + 11 + 2 * 4
    assert ipu.off_chip_bytes == 2 * 50
    plan = pipeline_plan(2, 4, device_mapping=[[0, 1], 2], training=False)
    parts = plan_cost(plan, [[StageCost(1), StageCost(3)], StageCost(2)])
    assert [ipu.busy for ipu in parts.ipus] == [4, 12, 8]
    assert [ipu.busy for ipu in plan_cost(plan, [StageCost(3), StageCost(2)]).ipus] == [12, 12, 8]


def pieces(*times, **each):
    return [StageCost(forward=time * 1e-6, update=0, load=0, save=0, **each) for time in times]


PLAN, PIECES = pipeline_plan(2, 4), pieces(1, 1)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: StageCost(forward=-1, update=float("nan")), ValueError, r"2 faults:\s.*`forward` must be 0 or more"),
        (lambda: StageCost(backward="2"), TypeError, "`backward` must be a number"),
        (lambda: StageCost(weight_shards=0), ValueError, "`weight_shards` must be 1 or more, but is 0"),
        (lambda: StageCost(weights_off_chip=1), TypeError, "`weights_off_chip`"),
        (lambda: plan_cost(PLAN, 1.0), TypeError, "`stage_costs` must be a `StageCost`"),
        (lambda: plan_cost(PLAN, [EVEN]), ValueError, "`stage_costs` has 1 items, but the plan has 2 stages"),
        (lambda: plan_cost(PLAN, [EVEN, 2]), TypeError, r"`stage_costs\[1\]` must be a `StageCost`"),
        (lambda: plan_cost(PLAN, [EVEN, [EVEN] * 2]), ValueError, r"`.*\[1\]` has 2 items, but the stage has 1 parts"),
        (lambda: compare_plans(4, 8, ipus=0), ValueError, "`ipus` must be 1 or more"),
        (lambda: compare_plans(1, 8), ValueError, "`stages` is 1"),
        (lambda: compare_plans(4, 8, [[EVEN], EVEN, EVEN, EVEN]), TypeError, "stages here have no parts"),
        (lambda: compare_plans(4, 8, machine="GC300"), ValueError, "`machine` is 'GC300', which is not known"),
        (lambda: balance(PIECES, 1, "GC200"), ValueError, "`ipus` must be 2 or more, but is 1"),
        (lambda: balance(PIECES, 3, "GC200"), ValueError, "`ipus` is 3, but the model has only 2 pieces"),
        (
            lambda: balance("model", 2, "GC200"),
            TypeError,
            "must be a Keras model that was created in a strategy's scope",
        ),
    ],
)
def test_bad_arguments_are_refused(call, kind, words, refused):
    refused(kind, words, call)


def best_of(*args, **options):
    best = compare_plans(*args, **options).best
    assert best is not None
    return best


def test_the_fastest_plan_that_fits_is_the_best():
    cost = StageCost(update=0, activation_bytes=100, input_bytes=10)
    assert best_of(4, 16, cost).label == "Grouped on [0, 1, 2, 3]"
    limited = compare_plans(4, 16, cost, bytes_per_ipu=450, recompute=False)
    assert limited.best is not None
    assert limited.best.label == "Interleaved on [0, 1, 2, 3]"
    assert "Grouped cannot be run: it needs 710 B on an IPU, which has 450 B" in limited.reason
    recomputing = compare_plans(4, 16, cost, bytes_per_ipu=450)
    assert "Grouped on [0, 1, 2, 3] would be faster, but it needs 710 B on an IPU" in recomputing.reason
    nothing = compare_plans(4, 16, cost, bytes_per_ipu=10)
    assert nothing.best is None
    assert nothing.reason.startswith("none can be run")
    # No passes overlap on one IPU. Of equally fast plans, the one with the least memory is the best.
    assert best_of(2, 4, StageCost(activation_bytes=1), ipus=1, recompute=False).schedule is SEQUENTIAL
    balanced = best_of(4, 64, [StageCost(forward=time, update=0) for time in (1, 1, 1, 3)], ipus=2)
    assert balanced.cost is not None
    assert balanced.device_mapping == (0, 0, 0, 1)
    assert balanced.cost.bubble_share < 0.1


def test_a_comparison_tells_what_cannot_be_run():
    comparison = compare_plans(4, 4)
    assert comparison.best_of(GROUPED) is None
    assert "Grouped cannot be run: its number of micro-batches must be a multiple of 8" in comparison.reason
    refused = {
        candidate.refused
        for candidate in comparison.candidates
        if candidate.schedule is INTERLEAVED and candidate.refused
    }
    assert refused == {"Interleaved trains with one stage an IPU only"}
    inference = compare_plans(3, 6, training=False)
    assert {candidate.recomputation_mode for candidate in inference.candidates} == {None}


@pytest.mark.parametrize(("used", "most"), [(1, 60), (2, 36), (4, 24), (8, 12)])
def test_contiguous_mappings_are_the_most_even_and_all_of_few_stages(used, most):
    weights = [1.0] * 12 + [12.0] * 4
    mapping = next(candidate for candidate in pipelining.contiguous_mappings(weights, 8) if max(candidate) == used - 1)
    assert (
        max(sum(weight for weight, place in zip(weights, mapping, strict=True) if place == ipu) for ipu in range(used))
        == most
    )
    assert list(mapping) == sorted(mapping)
    assert pipelining.contiguous_mappings([1, 1, 1], 3) == [(0, 0, 0), (0, 1, 1), (0, 0, 1), (0, 1, 2)]


def test_the_memory_of_the_machine_is_the_limit_of_a_comparison():
    cost = StageCost(weight_bytes=600 * 2**20)
    assert compare_plans(2, 4, cost, machine="GC200").best is None
    assert best_of(2, 4, cost, machine="GC200", training=False).device_mapping == (0, 1)


def test_an_exchange_takes_what_the_links_of_the_machine_take():
    system = dataclasses.replace(systems()["IPU-POD16"], link_bytes_per_second=100.0, link_latency_seconds=0.5)
    costs = [dataclasses.replace(EVEN, input_bytes=size) for size in (7, 200, 400)]
    plan = pipeline_plan(3, 6, SEQUENTIAL)
    cost = plan_cost(plan, costs, machine=system)
    # For each micro-batch, 200 and 400 bytes are sent forward, and the same sizes back, one after the other.
    exchanges = 6 * 2 * (2.5 + 4.5)
    assert cost.time == pytest.approx(plan_cost(plan, costs).time + exchanges)
    assert cost.exchange_share == pytest.approx(exchanges / cost.time)
    assert all_shares(cost) == pytest.approx(1)
    *_, (_, _, end, _) = pipelining.timeline(plan, costs, machine=system)
    assert end == pytest.approx(cost.time)
    together = pipeline_plan(3, 6, SEQUENTIAL, device_mapping=[0, 0, 0])
    assert plan_cost(together, dataclasses.replace(EVEN, input_bytes=10**9), machine="GC200").exchange_share == 0


def test_phases_load_and_save_their_bytes_at_the_rate_of_the_machine():
    system = dataclasses.replace(systems()["IPU-POD16"], streaming_bytes_per_second=10.0)
    cost = StageCost(0, 0, update=0, weight_bytes=100, accumulator_bytes=20, activation_bytes=30, state_bytes=7)
    plan = pipelining.serial_phases_plan([0, 0])
    moved = {"LF": 100, "SF": 30, "LB": 100 + 30 + 20, "SB": 20, "LU": 100 + 7 + 20, "SU": 100 + 7}
    expected = 0
    for _, _, _, spans in pipelining.timeline(plan, cost, machine=system):
        for span in spans:
            seconds = moved.get("".join(filter(str.isalpha, str(span.instruction))), 0) / 10
            assert span.end - span.begin == pytest.approx(seconds)
            expected += seconds
    assert expected > 0
    assert plan_cost(plan, cost, machine=system).time == pytest.approx(expected)


def test_stashes_off_the_chip_leave_one_micro_batch_on_it_and_take_time():
    costs = StageCost(1.0, 2.0, activation_bytes=100, input_bytes=10, weight_bytes=1, update=0)
    plan = pipeline_plan(4, 8)
    moved = plan.offloaded(activations=True)
    assert "activations off the chip" in str(moved)
    on_chip, cost = plan_cost(plan, costs, machine=SYSTEM), plan_cost(moved, costs, machine=SYSTEM)
    assert [ipu.stash_bytes for ipu in on_chip.ipus] == [700, 500, 300, 100]
    assert [ipu.stash_bytes for ipu in cost.ipus] == [100] * 4
    assert [ipu.off_chip_bytes for ipu in cost.ipus] == [
        700,
        500,
        300,
        0,
    ]  # The last stage runs its backward pass at once.
    assert cost.ipus[0].busy - on_chip.ipus[0].busy == pytest.approx(8 * 2 * 100 / STREAMED)
    assert cost.ipus[3].busy == on_chip.ipus[3].busy
    assert all_shares(cost) == pytest.approx(1)
    assert cost.transfer_share == pytest.approx(3 * 8 * 2 * 100 / STREAMED / (4 * cost.time))
    inference = pipeline_plan(4, 8, training=False)
    assert inference.offloaded(activations=True, accumulators=True) == inference
    recomputing = pipeline_plan(4, 8, recomputation_mode=THEN).offloaded(activations=True)
    cost = plan_cost(recomputing, StageCost(activation_bytes=100, input_bytes=10), machine=SYSTEM)
    assert [ipu.off_chip_bytes for ipu in cost.ipus] == [70, 50, 30, 0]  # Stashed inputs.
    assert [ipu.stash_bytes for ipu in cost.ipus] == [110, 110, 110, 100]


def test_accumulators_off_the_chip_come_and_go_with_each_backward_pass():
    costs = StageCost(1.0, 2.0, weight_bytes=8, accumulator_bytes=40, update=0)
    plan = pipeline_plan(2, 8, device_mapping=[0, 0], schedule=SEQUENTIAL)
    on_chip, cost = (
        plan_cost(variant, costs, machine=SYSTEM).ipus[0] for variant in (plan, plan.offloaded(accumulators=True))
    )
    assert (on_chip.weight_bytes, cost.weight_bytes) == (2 * 48, 2 * 8 + 40)
    assert cost.off_chip_bytes == 2 * 40
    # Each backward pass loads and saves them, and the update loads them.
    assert cost.busy - on_chip.busy == pytest.approx(2 * (8 * 2 + 1) * 40 / STREAMED)


@pytest.mark.parametrize("beside", [False, True])
def test_weights_that_replicas_share_are_gathered_for_each_pass(beside):
    cost = StageCost(1.0, 2.0, weight_bytes=64e6, accumulator_bytes=0, update=0)
    plan = pipeline_plan(2, 8, device_mapping=[0, 0], schedule=SEQUENTIAL)
    shared = dataclasses.replace(cost, weight_shards=4, weights_off_chip=beside)
    unshared, sharded = (plan_cost(plan, variant, machine=SYSTEM).ipus[0] for variant in (cost, shared))
    # The shards of both stages, and all weights of the stage that runs.
    assert (unshared.weight_bytes, sharded.weight_bytes) == (128e6, 64e6 if beside else 2 * 16e6 + 64e6)
    assert sharded.off_chip_bytes == (32e6 if beside else 0)
    gathered = 48e6 / SYSTEM.link_bytes_per_second + 2 * 3 * SYSTEM.link_latency_seconds
    streamed = beside * 16e6 / STREAMED
    assert sharded.busy - unshared.busy == pytest.approx(2 * (8 * 2 * (gathered + streamed) + 2 * streamed))


def test_instructions_are_priced_once_for_all_their_micro_batches(monkeypatch):
    instructions: list[object] = []
    time_of = StageCost.time

    def counted(self, instruction):
        instructions.append(instruction)
        return time_of(self, instruction)

    monkeypatch.setattr(StageCost, "time", counted)
    for count in (8, 32):
        plan_cost(pipeline_plan(4, count))
    assert len(instructions) == 2 * 4 * 3  # Two plans of four stages, with forward, backward and update.


MIB = 2**20


def test_the_longest_stage_is_as_short_as_it_can_be():
    times = (5, 1, 1, 1, 7, 2, 2, 3, 1)
    proposal = balance(pieces(*times), 3, "GC200")
    splits = itertools.combinations(range(1, len(times)), 2)
    best = min(max(sum(times[:a]), sum(times[a:b]), sum(times[b:])) for a, b in splits)
    assert max(cost.forward for cost in proposal.costs) == pytest.approx(best * 1e-6)
    assert proposal.assignment == list(proposal.stages) == sorted(proposal.stages)
    assert set(proposal.stages) == {0, 1, 2}
    assert proposal.fits
    assert not proposal.recompute
    text = str(proposal)
    assert text.startswith("3 stages, one an IPU, 48 micro-batches: ")
    assert "stage 1:" in text


def test_memory_moves_a_cut_and_then_asks_for_recomputation():
    # Times would give each stage two pieces, but the weights of the first two do not fit one IPU.
    heavy = [StageCost(1e-6, weight_bytes=300 * MIB), StageCost(1e-6, weight_bytes=300 * MIB), *pieces(1, 1)]
    assert balance(heavy, 2, "GC200").stages == (0, 1, 1, 1)
    hoarding = pieces(1, 1, 1, 1, activation_bytes=300 * MIB, input_bytes=MIB)
    proposal = balance(hoarding, 2, "GC200", micro_batches=16)
    assert (proposal.recompute, proposal.fits) == (True, True)
    assert ", with recomputation" in str(proposal)
    assert "stage 0: 8 us" in str(proposal)
    assert "stage 1: 6 us" in str(proposal)  # The last stage does not recompute.
    without = balance(hoarding, 2, "GC200", micro_batches=16, recompute=False)
    assert (without.recompute, without.fits) == (False, False)


def test_what_fits_nowhere_is_told():
    proposal = balance([StageCost(1e-6, weight_bytes=900 * MIB)] * 2, 2, "GC200")
    assert not proposal.fits
    assert "it does not fit" in str(proposal)
