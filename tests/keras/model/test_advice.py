"""Tests advice that cuts a model into pieces: estimates from the costs of pieces and of plans."""

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
def find_advice():
    """Returns a function that searches for advice on a model of ten pieces, by the first words of the changes."""

    def ask(retrace=True, **changes):
        pieces = Pieces(tuple(f"layer_{number}" for number in range(10)), (PIECE,) * 10)
        arguments = {
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
        search = ModelSearch(start=start, **{**arguments, **changes})
        search.recipe = lambda retrace: None
        answers: list[Any] = list(search.advice(retrace))
        return {answer.change.split(":")[0].split(",")[0]: answer for answer in answers}

    return ask


def test_nothing_is_traced_before_it_is_asked_for(find_advice):
    def never(*_):
        raise AssertionError

    (answer,) = find_advice(False, rescaled=never, cut=never).values()
    assert answer.change == "other micro-batches, recomputation, more stages"
    assert "call `report.advice(retrace=True)`" in answer.why
    (answer,) = find_advice(False, training=False, rescaled=never, cut=never).values()
    assert answer.change == "other micro-batches"


def test_other_micro_batches_are_for_as_many_samples_an_update(find_advice):
    calls = []

    def rescaled(scale, steps):
        calls.append((scale, steps))
        if scale > 1:
            raise ValueError("that is too large")
        return reported(0.6 * 30e-3, 600 * MIB)

    answers = {
        **find_advice(rescaled=rescaled),
        **find_advice(rescaled=rescaled, report=reported(30e-3, MIB)),
    }  # Larger micro-batches that fit.
    half = answers["micro-batches of 8 in place of 16"]
    assert half.change.endswith("and `gradient_accumulation_steps_per_replica` of 8")
    assert half.speed == pytest.approx(0.5 * 31e-3 / 19e-3)
    assert answers["micro-batches of 32 in place of 16"] == NotAsked(
        "micro-batches of 32 in place of 16, and `gradient_accumulation_steps_per_replica` of 2", "that is too large"
    )
    assert calls == [(0.5, 8), (2.0, 2)]
    odd = {"samples": 3, "training": False, "steps": 1}
    assert find_advice(**odd)["micro-batches of 1 in place of 3"].why == "a micro-batch of 3 cannot be halved"
    full = Memory(1200 * MIB, 0, MIB, MIB, MIB, GC200.bytes)
    answer = find_advice(report=dataclasses.replace(reported(30e-3, MIB), memories=(full,)))[
        "micro-batches of 8 in place of 16"
    ]
    assert answer.why == "variables and other permanent data alone exceed the memory"  # So nothing was traced for it.
    larger = find_advice(**odd, report=reported(30e-3, MIB))["micro-batches of 6 in place of 3"]
    assert isinstance(larger, Suggestion)


def test_recomputation_is_a_plan_of_stages_on_one_ipu(find_advice):
    answer = find_advice()["recomputation"]
    assert "3 stages, all on IPU 0" in answer.change
    # All but the last stage run forward once more: 6 or 7 of 10 pieces.
    assert answer.speed == pytest.approx(31 / (31 + 6), rel=0.03)
    # In place of all activations: inputs of stages, results recomputed in the largest stage, results kept in the last one.
    share = (2 * 10 + 4 * 60 + 4 * 60) / 600
    assert (2 * 50 + 2 + 50) * MIB < answer.memory <= (2 * 50 + 2 + 50 + share * 1200) * MIB


def test_stages_are_those_that_a_balance_gives(find_advice):
    two = find_advice()["2 stages"]
    assert "a replica then has 2 IPUs" in two.change
    balanced = pipelining.balance([PIECE] * 10, 2, "GC200")
    assert f"({balanced.cost.plan.micro_batches} micro-batches" in two.change
    assert two.speed == pytest.approx(31e-3 / (balanced.cost.time_per_micro_batch + 1e-3))
    largest = max(balanced.cost.ipus, key=lambda ipu: ipu.on_chip_bytes)
    share = (largest.stash_bytes + largest.link_bytes) / joined([PIECE] * 10).activation_bytes
    size = share * 1200 * MIB + largest.weight_bytes + 2 * MIB + 50 * MIB
    assert two.memory == pytest.approx(size, abs=16)
    four = find_advice(stages=3, steps=8)["4 stages"]
    assert "(8 micro-batches; a replica then has 4 IPUs)" in four.change
    assert find_advice(stages=8)["16 stages"].why == "the model has only 10 layers"


def test_a_model_that_cannot_be_cut_says_why(find_advice):
    def pieces():
        raise ValueError("model `m` has 1 layers, and a pipeline has 2 stages at least")

    assert find_advice(cut=pieces)["recomputation"].why.endswith("a pipeline has 2 stages at least")
    assert "recomputation" not in find_advice(training=False)
