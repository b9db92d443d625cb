"""Advice: each change has the effect that a report with the change predicts."""

import dataclasses
import json
import math

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.analysis.machine.advice import gathered
from tensorflow_ipu.analysis.machine.search import Effect, searched
from tensorflow_ipu.machine import (
    GC200,
    Kept,
    Memory,
    OperationTime,
    Report,
    SupplyAndDemand,
    Timeline,
    advice_of_reading,
    system_of,
    told_apart,
)

MIB = 2**20


@pytest.fixture(scope="module")
def large():
    """The operands of a product that may fit a chip."""
    return tf.TensorSpec([2048, 8192]), tf.TensorSpec([8192, 12288])


def changes(report, start):
    return [suggestion for suggestion in report.advice() if suggestion.change.startswith(start)]


def by_change(report, start):
    return changes(report, start)[0]


def test_float16_is_the_program_in_float16(report, large):
    advised = by_change(report(tf.matmul, *large), "float16")
    halves = report(tf.matmul, *(tf.TensorSpec(operand.shape, tf.float16) for operand in large))
    full = report(tf.matmul, *large)
    assert advised.speed == pytest.approx(full.step_seconds / halves.step_seconds)
    assert advised.memory == halves.memory.high
    assert not changes(halves, "float16")


def test_a_proportion_is_the_program_with_it(report, large):
    original = report(tf.matmul, *large)
    assert original.fits is None  # So the suggestions with the least memory come first.
    order = [(suggestion.verdict != "fits", suggestion.memory) for suggestion in original.advice()]
    assert order == sorted(order)
    advised = by_change(original, "`availableMemoryProportion` of 0.1 in place of 0.6")
    tight = report(tf.matmul, *large, proportion=0.1)
    assert (advised.memory, advised.verdict) == (tight.memory.high, tight.memory.verdict)
    assert advised.speed == pytest.approx(original.step_seconds / tight.step_seconds)


def test_advice_is_printed_saved_and_read_again(report, large, tmp_path):
    original = report(tf.matmul, *large)
    text = str(original)
    assert "changes that help, each on its own" in text
    assert "`availableMemoryProportion` of 0.1" in text
    original.save(tmp_path / "a.json")
    loaded = Report.load(tmp_path / "a.json")
    assert loaded.advice() == original.advice()
    assert loaded.advice().not_asked
    assert "changes that may help, but were not evaluated\n  * recomputation, stages" in text
    assert str(loaded) == text
    assert loaded == original


def test_what_does_not_help_is_not_told(report):
    advice = report(tf.reverse, tf.zeros([64], tf.int32), [0]).advice()
    assert not advice
    assert [entry.change for entry in advice.not_asked] == ["recomputation, stages, other micro-batches"]


def test_tiles_for_data_help_what_waits_for_data(report):
    rows = (
        OperationTime("in", "infeed", "s8[4]", 1, host=1e-3),
        OperationTime("product", "dot", "s8[4]", 1, compute=1e-3),
    )
    memory = Memory(MIB, 0, MIB, MIB, 2 * MIB, GC200.bytes)
    requests = []

    def again(**changes):
        requests.append(changes)
        return dataclasses.replace(original, overlaps_host=True)

    original = Report("p", system_of("GC200"), 1, rows, (memory,), (), overlaps_host=False)
    advice = gathered(original, advice_of_reading(original, again, 0.6))
    (suggestion,) = advice
    assert suggestion.change.startswith("`io_tiles.num_io_tiles` of 64")
    assert suggestion.speed == pytest.approx(2.0)
    assert requests[0]["system"].machine.io_tiles == 64
    (not_evaluated,) = advice.not_asked
    assert not_evaluated.change == "only more prefetching (`prefetch_depth`)"
    # With such tiles, transfers overlap the computation only if elements are fetched ahead.
    tiles = dataclasses.replace(original, system=requests[0]["system"])
    (deeper,) = gathered(tiles, advice_of_reading(tiles, again, 0.6))
    assert deeper.change.startswith("`prefetch_depth` of 2 in place of 1")
    assert (deeper.speed, requests[1]) == (pytest.approx(2.0), {"prefetch": 2})


@pytest.fixture
def pipelined():
    """A pipeline with four replicas of two IPUs, whose second IPU has 800 MiB of optimizer state."""
    memories = [Memory(50 * MIB, 0, MIB, MIB, MIB, GC200.bytes, ipu=n, optimizer=n * 800 * MIB) for n in range(2)]
    timeline = Timeline(1.0, micro_batches=8, passes=3, bubble=0.0, shown=8, tasks=())
    return Report("p", system_of("IPU-POD16"), 4, (), tuple(memories), (), overlaps_host=False, timeline=timeline)


def test_state_may_rest_off_the_chip_or_be_shared(pipelined):
    shared, off_chip = (
        by_change(pipelined, f"optimizer state {change}") for change in ("shared by the 4 replicas", "off the chip")
    )
    assert shared.memory == (50 + 2 + 200) * MIB
    assert shared.speed == 1.0
    assert off_chip.memory == 52 * MIB
    moved = 2 * 800 * MIB / pipelined.system.streaming_bytes_per_second
    assert off_chip.speed == pytest.approx(1 / (1 + moved))
    assert [suggestion.verdict for suggestion in pipelined.advice()] == ["fits", "fits"]


def test_demand_is_told_beside_supply(refused):
    rows = (OperationTime("in", "infeed", "f32[4]", 10, host=1e-3, host_bytes=160),)
    memory = Memory(MIB, 0, MIB, MIB, 2 * MIB, GC200.bytes)
    report = Report("p", system_of("GC200"), 2, rows, (memory,), (), overlaps_host=False)
    measured = {"epochs": [{"elements_per_second": 1.0}, {"elements_per_second": 5000.0}]}
    balance = report.data_balance(json.dumps(measured))
    assert balance == report.data_balance(measured) == SupplyAndDemand(pytest.approx(2e4), pytest.approx(3.2e5), 5000.0)
    assert balance.is_bound
    assert str(balance) == (
        "the program takes 20,000 elements/s (320 kB/s), the dataset gives 5,000 elements/s: bound by data, 4.0 times too slow"
    )
    assert "not bound by data" in str(dataclasses.replace(balance, supply=40000.0))
    refused(ValueError, "`benchmark` must be the JSON that `dataset_benchmark` returns", report.data_balance, "{}")
    refused(ValueError, "reads no infeed", dataclasses.replace(report, operations=()).data_balance, measured)


def test_what_rests_beside_the_chip_does_so_after_a_change_too(report, large):
    original = report(tf.matmul, *large)
    sizes = Kept(state=100 * MIB, off_chip=100 * MIB)
    changes = {suggestion.change: suggestion for suggestion in original.advice()}
    with_state = {
        suggestion.change: suggestion
        for suggestion in told_apart(dataclasses.replace(original, given_advice=None), sizes).advice()
    }
    for change, suggestion in with_state.items():
        size = 50 if change.startswith("float16") else 100  # State in float16 is half as large.
        assert suggestion.memory == changes[change].memory - size * MIB
    assert with_state


def test_state_that_comes_and_goes_does_so_in_half_the_time_in_float16(report):
    original = report(tf.matmul, tf.TensorSpec([64, 64]), tf.TensorSpec([64, 64]))
    offloaded = told_apart(original, Kept(state=2 * MIB, off_chip=2 * MIB))
    assert offloaded.again is not None
    halved = offloaded.again(halved=True)
    assert (offloaded.memory.off_chip, halved.memory.off_chip) == (2 * MIB, MIB)
    seconds = [
        sum(row.links for row in changed.operations if row.kind == "streaming") for changed in (offloaded, halved)
    ]
    assert seconds == [pytest.approx(time) for time in (seconds[0], seconds[0] / 2)]
    assert by_change(offloaded, "float16").speed == pytest.approx(offloaded.step_seconds / halved.step_seconds)


def test_data_pass_one_after_the_other_where_queues_fetch_no_more_than_one(strategy):
    machine = dataclasses.replace(GC200, io_tiles=64)

    def report_with(depth):
        with strategy.scope():
            infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors(tf.ones([256])), prefetch_depth=depth)

        @tf.function
        def program():
            return infeed._dequeue() * 2.0

        return strategy.report(program, machine=machine)

    shallow, deep = report_with(1), report_with(2)
    assert (shallow.overlaps_host, deep.overlaps_host) == (False, True)
    assert by_change(shallow, "`prefetch_depth` of 2").speed == pytest.approx(shallow.step_seconds / deep.step_seconds)
    assert not changes(deep, "`prefetch_depth`")


def test_changes_are_combined_by_what_they_save_for_the_time_they_cost():
    sizes = {"free": 0.6, "cheap": 0.7, "dear": 0.5, "vain": 1.0}
    slower = {"free": 1.0, "cheap": 1.1, "dear": 3.0, "vain": 1.0}
    moves = {name: lambda made, name=name: None if name in made else (*made, name) for name in sizes}

    def effect(made):
        size = 1500 * MIB * math.prod(sizes[name] for name in made)
        memory = Memory(round(size), 0, 0, 0, 0, GC200.bytes)
        return Effect(1 / math.prod(slower[name] for name in made), memory)

    assert [name for name, _ in searched((), moves, effect)] == ["free", "cheap"]
    sizes["cheap"] = 0.95  # Now "free" and "cheap" do not suffice, and "dear" makes them unnecessary.
    assert [name for name, _ in searched((), moves, effect)] == ["dear"]
    sizes.update(free=0.9, cheap=0.9, dear=0.9)
    assert [name for name, _ in searched((), moves, effect)] == ["free", "cheap", "dear"]


def test_a_program_that_is_not_traced_anew_has_a_recipe_too(report, large):
    recipe = report(tf.matmul, *large).advice().recipe
    assert recipe.fits
    assert [step.change.partition(" ")[0] for step in recipe.steps] == ["float16"]
    recipe = report(tf.matmul, large[0], tf.TensorSpec([8192, 24576])).advice().recipe
    assert [step.change.partition(" ")[0] for step in recipe.steps] == ["float16", "`availableMemoryProportion`"]
    assert recipe.code.splitlines()[1:3] == [
        'config.convolutions.poplar_options = {"availableMemoryProportion": "0.1"}',
        'config.matmuls.poplar_options = {"availableMemoryProportion": "0.1"}',
    ]
    assert recipe.left.startswith(
        "no combination of changes surely fits: the fullest of 1 IPU of 897 MiB has variables"
    )
    assert report(tf.matmul, tf.TensorSpec([64, 64]), tf.TensorSpec([64, 64])).advice().recipe is None
