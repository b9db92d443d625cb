"""MultiIPU ids name single IPUs, then pairs, then fours, up to the whole machine."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tensorflow_ipu.config._selection import machine_for, multi_ipu, overlaps

_POWERS = st.integers(0, 7).map(lambda exponent: 2**exponent)


def _ids(machine: int) -> list[list[int]]:
    groups = [multi_ipu(index, machine) for index in range(2 * machine)]
    return [list(group) for group in groups if group is not None]


def test_ids_are_those_of_single_ipus_then_pairs_and_so_on():
    assert _ids(4) == [[0], [1], [2], [3], [0, 1], [2, 3], [0, 1, 2, 3]]
    assert _ids(6) == [[0], [1], [2], [3], [4], [5], [0, 1], [2, 3], [4, 5], [0, 1, 2, 3]]


@given(_POWERS)
def test_last_id_is_the_whole_machine(machine: int):
    assert multi_ipu(2 * machine - 2, machine) == range(machine)
    assert multi_ipu(2 * machine - 1, machine) is None
    assert multi_ipu(-1, machine) is None


@given(st.integers(0, 300))
def test_machine_for_is_the_smallest_that_knows_the_id(index: int):
    machine = machine_for(index)
    assert multi_ipu(index, machine) is not None
    assert machine == 1 or multi_ipu(index, machine // 2) is None


@given(_POWERS, st.lists(st.integers(0, 300), max_size=6, unique=True))
def test_overlaps_are_the_pairs_that_share_an_ipu(machine: int, ids: list[int]):
    known = [index for index in ids if multi_ipu(index, machine) is not None]
    sharing = {
        (first, second)
        for at, first in enumerate(known)
        for second in known[at + 1 :]
        if set(multi_ipu(first, machine) or ()) & set(multi_ipu(second, machine) or ())
    }
    assert set(overlaps(ids, machine)) == sharing
