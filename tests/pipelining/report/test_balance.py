"""Where a model is cut: by time, with memory as the bound."""

from __future__ import annotations

import itertools

import pytest

from tensorflow_ipu.pipelining import StageCost, balance

MIB = 2**20


def pieces(*times, **each):
    return [StageCost(forward=time * 1e-6, update=0, load=0, save=0, **each) for time in times]


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
    # By time alone two pieces a stage; the weights of the first two do not fit one IPU.
    heavy = [StageCost(1e-6, weight_bytes=300 * MIB), StageCost(1e-6, weight_bytes=300 * MIB), *pieces(1, 1)]
    assert balance(heavy, 2, "GC200").stages == (0, 1, 1, 1)
    hoarding = pieces(1, 1, 1, 1, activation_bytes=300 * MIB, input_bytes=MIB)
    proposal = balance(hoarding, 2, "GC200", micro_batches=16)
    assert (proposal.recompute, proposal.fits) == (True, True)
    assert ", with recomputation" in str(proposal)
    assert "stage 0: 8 us" in str(proposal)
    assert "stage 1: 6 us" in str(proposal)  # The last one has nothing to recompute.
    kept = balance(hoarding, 2, "GC200", micro_batches=16, recompute=False)
    assert (kept.recompute, kept.fits) == (False, False)


def test_what_fits_nowhere_is_told():
    proposal = balance([StageCost(1e-6, weight_bytes=900 * MIB)] * 2, 2, "GC200")
    assert not proposal.fits
    assert "it does not fit" in str(proposal)


@pytest.mark.parametrize(
    ("given", "ipus", "kind", "message"),
    [
        (pieces(1, 1), 1, ValueError, "`ipus` must be 2 or more, but is 1"),
        (pieces(1, 1), 3, ValueError, "`ipus` is 3, but the model has only 2 pieces"),
        ("model", 2, TypeError, "`model_or_stages` must be a Keras model that was made in a strategy's scope"),
    ],
)
def test_what_cannot_be_balanced_is_refused(given, ipus, kind, message):
    with pytest.raises(kind, match=message):
        balance(given, ipus, "GC200")
