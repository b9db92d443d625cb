"""Advice is computed: each change has the effect that a report with the change has."""

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
    """The operands of a product that may just fit a chip."""
    return tf.TensorSpec([2048, 8192]), tf.TensorSpec([8192, 12288])


def changes(report, start):
    return [each for each in report.advice() if each.change.startswith(start)]


def by_change(report, start):
    return changes(report, start)[0]


def test_float16_is_the_program_in_float16(report, large):
    advised = by_change(report(tf.matmul, *large), "float16")
    halves = report(tf.matmul, *(tf.TensorSpec(each.shape, tf.float16) for each in large))
    full = report(tf.matmul, *large)
    assert advised.speed == pytest.approx(full.step_seconds / halves.step_seconds)
    assert advised.memory == halves.memory.high
    assert not changes(halves, "float16")


def test_a_proportion_is_the_program_with_it(report, large):
    made = report(tf.matmul, *large)
    assert made.fits is None  # So the leanest stand first.
    order = [(each.verdict != "fits", each.memory) for each in made.advice()]
    assert order == sorted(order)
    advised = by_change(made, "`availableMemoryProportion` of 0.1 in place of 0.6")
    tight = report(tf.matmul, *large, proportion=0.1)
    assert (advised.memory, advised.verdict) == (tight.memory.high, tight.memory.verdict)
    assert advised.speed == pytest.approx(made.step_seconds / tight.step_seconds)


def test_advice_is_printed_saved_and_read_again(report, large, tmp_path):
    made = report(tf.matmul, *large)
    text = str(made)
    assert "what would help, each alone" in text
    assert "`availableMemoryProportion` of 0.1" in text
    made.save(tmp_path / "a.json")
    again = Report.load(tmp_path / "a.json")
    assert again.advice() == made.advice()
    assert again.advice().not_asked
    assert "what would help, and was not asked\n  * recomputation, stages" in text
    assert str(again) == text
    assert again == made


def test_what_does_not_help_is_not_told(report):
    advice = report(tf.reverse, tf.zeros([64], tf.int32), [0]).advice()
    assert not advice
    assert [each.change for each in advice.not_asked] == ["recomputation, stages, other micro-batches"]


def test_tiles_for_data_help_what_waits_for_data(report):
    rows = (
        OperationTime("in", "infeed", "s8[4]", 1, host=1e-3),
        OperationTime("product", "dot", "s8[4]", 1, compute=1e-3),
    )
    memory = Memory(MIB, 0, MIB, MIB, 2 * MIB, GC200.bytes)
    asked = []

    def ask(**changes):
        asked.append(changes)
        return dataclasses.replace(plain, overlaps_host=True)

    plain = Report("p", system_of("GC200"), 1, rows, (memory,), (), overlaps_host=False)
    advice = gathered(plain, advice_of_reading(plain, ask, 0.6))
    (only,) = advice
    assert only.change.startswith("`io_tiles.num_io_tiles` of 64")
    assert only.speed == pytest.approx(2.0)
    assert asked[0]["system"].machine.io_tiles == 64
    (alone,) = advice.not_asked
    assert alone.change == "more prefetch alone (`prefetch_depth`)"
    # With such tiles, one element is passed at a time where no more are fetched ahead.
    tiles = dataclasses.replace(plain, system=asked[0]["system"])
    (deeper,) = gathered(tiles, advice_of_reading(tiles, ask, 0.6))
    assert deeper.change.startswith("`prefetch_depth` of 2 in place of 1")
    assert (deeper.speed, asked[1]) == (pytest.approx(2.0), {"prefetch": 2})


@pytest.fixture
def pipelined():
    """A pipeline on two IPUs, of which the second one has 800 MiB of state, and four replicas."""
    memories = [Memory(50 * MIB, 0, MIB, MIB, MIB, GC200.bytes, ipu=n, optimizer=n * 800 * MIB) for n in range(2)]
    timeline = Timeline(1.0, micro_batches=8, passes=3, bubble=0.0, shown=8, tasks=())
    return Report("p", system_of("IPU-POD16"), 4, (), tuple(memories), (), overlaps_host=False, timeline=timeline)


def test_state_may_rest_off_the_chip_or_be_shared(pipelined):
    shared, away = (
        by_change(pipelined, f"optimizer state {how}") for how in ("shared by the 4 replicas", "off the chip")
    )
    assert shared.memory == (50 + 2 + 200) * MIB
    assert shared.speed == 1.0
    assert away.memory == 52 * MIB
    moved = 2 * 800 * MIB / pipelined.system.streaming_bytes_per_second
    assert away.speed == pytest.approx(1 / (1 + moved))
    assert [each.verdict for each in pipelined.advice()] == ["fits", "fits"]


def test_demand_is_told_beside_supply(refused):
    rows = (OperationTime("in", "infeed", "f32[4]", 10, host=1e-3, host_bytes=160),)
    memory = Memory(MIB, 0, MIB, MIB, 2 * MIB, GC200.bytes)
    made = Report("p", system_of("GC200"), 2, rows, (memory,), (), overlaps_host=False)
    measured = {"epochs": [{"elements_per_second": 1.0}, {"elements_per_second": 5000.0}]}
    balance = made.data_balance(json.dumps(measured))
    assert balance == made.data_balance(measured) == SupplyAndDemand(pytest.approx(2e4), pytest.approx(3.2e5), 5000.0)
    assert balance.is_bound
    assert str(balance) == (
        "the program takes 20,000 elements/s (320 kB/s), the dataset gives 5,000 elements/s: bound by data, 4.0 times too slow"
    )
    assert "not bound by data" in str(dataclasses.replace(balance, supply=40000.0))
    refused(ValueError, "`benchmark` must be the JSON that `dataset_benchmark` returns", made.data_balance, "{}")
    refused(ValueError, "reads no infeed", dataclasses.replace(made, operations=()).data_balance, measured)


def test_what_rests_beside_the_chip_does_so_after_a_change_too(report, large):
    plain = report(tf.matmul, *large)
    kept = Kept(state=100 * MIB, off_chip=100 * MIB)
    changes = {each.change: each for each in plain.advice()}
    placed = {each.change: each for each in told_apart(dataclasses.replace(plain, given_advice=None), kept).advice()}
    for change, each in placed.items():
        size = 50 if change.startswith("float16") else 100  # State in float16 is smaller, wherever it rests.
        assert each.memory == changes[change].memory - size * MIB
    assert placed


def test_state_that_comes_and_goes_does_so_in_half_the_time_in_float16(report):
    plain = report(tf.matmul, tf.TensorSpec([64, 64]), tf.TensorSpec([64, 64]))
    made = told_apart(plain, Kept(state=2 * MIB, off_chip=2 * MIB))
    assert made.again is not None
    halved = made.again(halved=True)
    assert (made.memory.off_chip, halved.memory.off_chip) == (2 * MIB, MIB)
    seconds = [sum(row.links for row in each.operations if row.kind == "streaming") for each in (made, halved)]
    assert seconds == [pytest.approx(time) for time in (seconds[0], seconds[0] / 2)]
    assert by_change(made, "float16").speed == pytest.approx(made.step_seconds / halved.step_seconds)


def test_data_pass_one_after_the_other_where_queues_fetch_no_more_than_one(strategy):
    machine = dataclasses.replace(GC200, io_tiles=64)

    def made(depth):
        with strategy.scope():
            infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors(tf.ones([256])), prefetch_depth=depth)

        @tf.function
        def program():
            return infeed._dequeue() * 2.0

        return strategy.report(program, machine=machine)

    one, two = made(1), made(2)
    assert (one.overlaps_host, two.overlaps_host) == (False, True)
    assert by_change(one, "`prefetch_depth` of 2").speed == pytest.approx(one.step_seconds / two.step_seconds)
    assert not changes(two, "`prefetch_depth`")


def test_changes_are_combined_by_what_they_save_for_the_time_they_cost():
    sizes = {"free": 0.6, "cheap": 0.7, "dear": 0.5, "vain": 1.0}
    slower = {"free": 1.0, "cheap": 1.1, "dear": 3.0, "vain": 1.0}
    moves = {name: lambda made, name=name: None if name in made else (*made, name) for name in sizes}

    def effect(made):
        size = 1500 * MIB * math.prod(sizes[name] for name in made)
        memory = Memory(round(size), 0, 0, 0, 0, GC200.bytes)
        return Effect(1 / math.prod(slower[name] for name in made), memory)

    assert [name for name, _ in searched((), moves, effect)] == ["free", "cheap"]
    sizes["cheap"] = 0.95  # Which do not suffice, and are not needed once the dear one is there.
    assert [name for name, _ in searched((), moves, effect)] == ["dear"]
    sizes.update(free=0.9, cheap=0.9, dear=0.9)
    assert [name for name, _ in searched((), moves, effect)] == ["free", "cheap", "dear"]


def test_a_program_that_is_not_traced_anew_has_a_recipe_too(report, large):
    recipe = report(tf.matmul, *large).advice().recipe
    assert recipe.fits
    assert [each.change.partition(" ")[0] for each in recipe.steps] == ["float16"]
    recipe = report(tf.matmul, large[0], tf.TensorSpec([8192, 24576])).advice().recipe
    assert [each.change.partition(" ")[0] for each in recipe.steps] == ["float16", "`availableMemoryProportion`"]
    assert recipe.code.splitlines()[1:3] == [
        'config.convolutions.poplar_options = {"availableMemoryProportion": "0.1"}',
        'config.matmuls.poplar_options = {"availableMemoryProportion": "0.1"}',
    ]
    assert recipe.left.startswith("no combination surely fits: the fullest of 1 IPU of 897 MiB has variables")
    assert report(tf.matmul, tf.TensorSpec([64, 64]), tf.TensorSpec([64, 64])).advice().recipe is None
