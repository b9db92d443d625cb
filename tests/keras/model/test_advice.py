"""Advice for which a model is cut: computed from what its pieces take, and told by what a plan of them takes."""

import dataclasses
from typing import Any

import pytest

from tensorflow_ipu import pipelining
from tensorflow_ipu.analysis.machine.search import Variant
from tensorflow_ipu.analysis.models.search import ModelSearch
from tensorflow_ipu.analysis.pipelines.comparison import Pieces, joined
from tensorflow_ipu.machine import GC200, Memory, NotAsked, OperationTime, Report, Suggestion, system_of
from tensorflow_ipu.pipelining import StageCost

MIB = 2**20
PIECE = StageCost(1e-3, 2e-3, update=0.0, activation_bytes=60 * MIB, input_bytes=10 * MIB, weight_bytes=5 * MIB)


def reported(seconds, data):
    rows = (
        OperationTime("in", "infeed", "f32[4]", 1, host=1e-3),
        OperationTime("all", "dot", "f32[4]", 1, compute=seconds),
    )
    memory = Memory(50 * MIB, 0, data, 10 * MIB, 50 * MIB, GC200.bytes, feeds=2 * MIB)
    return Report("p", system_of("GC200"), 1, rows, (memory,), (), overlaps_host=False)


@pytest.fixture
def asked():
    """Asks of a model of ten pieces: `asked(**changes)` gives the answers by their first words."""

    def ask(retrace=True, **changes):
        pieces = Pieces(tuple(f"layer_{number}" for number in range(10)), (PIECE,) * 10)
        given = {
            "report": reported(30e-3, 1200 * MIB),
            "training": True,
            "rescaled": lambda scale, steps: reported(scale * 30e-3, round(scale * 1200 * MIB)),
            "cut": lambda: pieces,
            "traced": None,
            "pipelined": False,
            "kept": {},
        }
        start = Variant(
            **{name: changes.pop(name, value) for name, value in (("samples", 16), ("steps", 4), ("stages", 1))}
        )
        search = ModelSearch(start=start, **{**given, **changes})
        search.recipe = lambda retrace: None
        answers: list[Any] = list(search.advice(retrace))
        return {each.change.split(":")[0].split(",")[0]: each for each in answers}

    return ask


def test_nothing_is_traced_before_it_is_asked_for(asked):
    def never(*_):
        raise AssertionError

    (told,) = asked(False, rescaled=never, cut=never).values()
    assert told.change == "other micro-batches, recomputation, more stages"
    assert "`report.advice(retrace=True)` asks" in told.why
    (told,) = asked(False, training=False, rescaled=never, cut=never).values()
    assert told.change == "other micro-batches"


def test_other_micro_batches_are_for_as_many_samples_an_update(asked):
    calls = []

    def other(scale, steps):
        calls.append((scale, steps))
        if scale > 1:
            raise ValueError("that is too large")
        return reported(0.6 * 30e-3, 600 * MIB)

    answers = {
        **asked(rescaled=other),
        **asked(rescaled=other, report=reported(30e-3, MIB)),
    }  # Larger ones of what fits.
    half = answers["micro-batches of 8 in place of 16"]
    assert half.change.endswith("and `gradient_accumulation_steps_per_replica` of 8")
    assert half.speed == pytest.approx(0.5 * 31e-3 / 19e-3)
    assert answers["micro-batches of 32 in place of 16"] == NotAsked(
        "micro-batches of 32 in place of 16, and `gradient_accumulation_steps_per_replica` of 2", "that is too large"
    )
    assert calls == [(0.5, 8), (2.0, 2)]
    odd = {"samples": 3, "training": False, "steps": 1}
    assert asked(**odd)["micro-batches of 1 in place of 3"].why == "a micro-batch is of whole samples"
    full = Memory(1200 * MIB, 0, MIB, MIB, MIB, GC200.bytes)
    kept = asked(report=dataclasses.replace(reported(30e-3, MIB), memories=(full,)))[
        "micro-batches of 8 in place of 16"
    ]
    assert kept.why == "what is there all the time is too large at any size"  # So nothing was traced for it.
    larger = asked(**odd, report=reported(30e-3, MIB))["micro-batches of 6 in place of 3"]
    assert isinstance(larger, Suggestion)


def test_recomputation_is_a_plan_of_stages_on_one_ipu(asked):
    again = asked()["recomputation"]
    assert "3 stages, all on IPU 0" in again.change
    # All but the last stage run forward once more: 6 or 7 of 10 pieces.
    assert again.speed == pytest.approx(31 / (31 + 6), rel=0.03)
    # Inputs of stages, what the largest has recomputed, and what the last one has kept, in the place of all.
    share = (2 * 10 + 4 * 60 + 4 * 60) / 600
    assert (2 * 50 + 2 + 50) * MIB < again.memory <= (2 * 50 + 2 + 50 + share * 1200) * MIB


def test_stages_are_those_that_a_balance_gives(asked):
    two = asked()["2 stages"]
    assert "a replica then has 2 IPUs" in two.change
    made = pipelining.balance([PIECE] * 10, 2, "GC200")
    assert f"({made.cost.plan.micro_batches} micro-batches" in two.change
    assert two.speed == pytest.approx(31e-3 / (made.cost.time_per_micro_batch + 1e-3))
    largest = max(made.cost.ipus, key=lambda each: each.on_chip_bytes)
    share = (largest.stash_bytes + largest.link_bytes) / joined([PIECE] * 10).activation_bytes
    size = share * 1200 * MIB + largest.weight_bytes + 2 * MIB + 50 * MIB
    assert two.memory == pytest.approx(size, abs=16)
    four = asked(stages=3, steps=8)["4 stages"]
    assert "(8 micro-batches; a replica then has 4 IPUs)" in four.change
    assert asked(stages=8)["16 stages"].why == "the model has 10 layers"


def test_a_model_that_cannot_be_cut_says_why(asked):
    def pieces():
        raise ValueError("model `m` has 1 layers, and a pipeline has 2 stages at least")

    assert asked(cut=pieces)["recomputation"].why.endswith("a pipeline has 2 stages at least")
    assert "recomputation" not in asked(training=False)
