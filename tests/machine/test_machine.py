"""The machines' figures, and what may be made of them."""

import dataclasses

import pytest

from tensorflow_ipu.machine import BOW, GC2, GC200, Machine, system_of, systems


@pytest.mark.parametrize(
    ("machine", "half", "single", "mib"),
    [(GC2, 124.5e12, 31.1e12, 304), (GC200, 249.6e12, 62.4e12, 897), (BOW, 350e12, 87.4e12, 897)],
)
def test_peaks_and_memories_are_the_published_ones(machine: Machine, half: float, single: float, mib: int):
    assert machine.bytes == mib * 2**20
    assert machine.peak_half_flops == pytest.approx(half, rel=0.01)
    assert machine.peak_float_flops == pytest.approx(single, rel=0.01)


def test_tiles_for_io_do_not_compute():
    machine = dataclasses.replace(GC200, io_tiles=72)
    assert machine.compute_tiles == 1400
    assert machine.bytes == 1400 * 624 * 1024
    assert machine.peak_half_flops == pytest.approx(GC200.peak_half_flops * 1400 / 1472)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"tiles": 0}, ValueError, "`tiles` must be above 0, but is 0"),
        ({"tiles": 1.5}, TypeError, "`tiles` must be a whole number, but is 1.5"),
        ({"clock_hz": float("inf")}, ValueError, "`clock_hz` must be above 0, but is inf"),
        ({"clock_hz": True}, TypeError, "`clock_hz` must be a number, but is True"),
        ({"name": 3}, TypeError, "`name` must be a string, but is 3"),
        ({"io_tiles": 1472}, ValueError, "`io_tiles` is 1472 of 1472 tiles"),
        ({"clock_hz": -1.0, "half_macs": 0}, ValueError, "(?s)2 faults.*`clock_hz`.*`half_macs`"),
    ],
)
def test_a_machine_that_cannot_be_is_refused(change, kind, message):
    with pytest.raises(kind, match=message):
        dataclasses.replace(GC200, **change)


@pytest.mark.parametrize("name", ["Bow Pod16", "bow-pod16", "BOWPOD16"])
def test_systems_are_found_by_name(name: str):
    system = system_of(name)
    assert system == systems()["Bow Pod16"]
    assert system.ipus == 16
    assert system.machine is BOW


def test_a_machine_is_put_into_its_box():
    assert system_of("GC200").machine is GC200
    assert system_of(GC2).ipus == 2
    mine = dataclasses.replace(GC200, name="mine", tiles=10)
    assert system_of(mine).machine is mine
    assert system_of(system_of(mine)).name == "mine"


def test_an_unknown_machine_lists_those_there_are():
    with pytest.raises(ValueError, match="`machine` is 'GC300', which is not known") as caught:
        system_of("GC300")
    for name in ("GC2", "GC200", "Bow", *systems()):
        assert f"`{name}`" in str(caught.value)
    with pytest.raises(TypeError, match="`machine` must be a `Machine`, a `System` or a name, but is 3"):
        system_of(3)
