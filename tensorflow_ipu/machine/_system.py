"""Machines that are joined: how many IPUs, their links, the host and the memory beside them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from tensorflow_ipu._checks import is_int
from tensorflow_ipu.machine._machine import BOW, GC2, GC200, Machine

_GIGA = 1e9


@dataclass(frozen=True)
class System:
    """IPUs of one kind, joined by links, with a host and a memory beside them.

    Change a field with `dataclasses.replace`.

    Attributes:
      name: What it is called in reports.
      machine: One of its IPUs.
      ipus: How many IPUs it has.
      link_bytes_per_second: What an IPU sends to its neighbours, and receives, at a time.
      link_latency_seconds: From the begin of a transfer between two neighbours until its first byte is there.
      gateway_bytes_per_second: What an IPU's share of the links between Pods carries, where a program spans several.
      ipus_of_pod: How many IPUs the links join; more are joined by gateways.
      host_bytes_per_second: What an IPU reads from its host, or writes to it, while all IPUs do.
      streaming_bytes: The memory beside the chips (Streaming Memory), an IPU.
      streaming_bytes_per_second: How fast an IPU reads or writes it while all do.
    """

    name: str
    machine: Machine
    ipus: int
    link_bytes_per_second: float
    link_latency_seconds: float
    gateway_bytes_per_second: float
    ipus_of_pod: int
    host_bytes_per_second: float
    streaming_bytes: int
    streaming_bytes_per_second: float

    def __post_init__(self) -> None:
        """Checks the number of IPUs.

        Raises:
          ValueError: It is not above 0.
        """
        if not is_int(self.ipus) or self.ipus < 1:
            raise ValueError(f"`ipus` must be 1 or more, but is {self.ipus!r}")


# * Links: ten of 32 GB/s a chip, 320 GB/s in and out in all, of which a program's traffic in one direction gets half
#   (data sheets: IPU-Link 512 Gbit/s a machine's port, 2.5 Tbit/s of links a chip).
# * Gateways: two of 100 Gbit/s for the four chips of a machine (data sheet of the Bow-2000).
# * Host: one 100 Gbit/s RDMA interface for the four chips of a machine (same). A C2 card: PCIe Gen4 x16 for two.
# * Streaming Memory: up to 256 GB a machine (same). Its bandwidth is in no data sheet; 20 GB/s a machine is commonly
#   named, and is the least certain figure here.
_M2000 = System(
    "IPU-M2000",
    GC200,
    ipus=4,
    link_bytes_per_second=160 * _GIGA,
    link_latency_seconds=1e-6,
    gateway_bytes_per_second=2 * 12.5 * _GIGA / 4,
    ipus_of_pod=64,
    host_bytes_per_second=12.5 * _GIGA / 4,
    streaming_bytes=64 * 10**9,
    streaming_bytes_per_second=20 * _GIGA / 4,
)
_C2 = dataclasses.replace(
    _M2000,
    name="C2",
    machine=GC2,
    ipus=2,
    ipus_of_pod=16,
    host_bytes_per_second=31.5 * _GIGA / 2,
    streaming_bytes_per_second=31.5 * _GIGA / 2,  # There is none beside the chips: the host's memory serves.
)
_BOW_2000 = dataclasses.replace(_M2000, name="Bow-2000", machine=BOW)


def _pod(machine: System, name: str, ipus: int) -> System:
    return dataclasses.replace(machine, name=name, ipus=ipus)


_SYSTEMS = (
    _C2,
    _M2000,
    *(_pod(_M2000, f"IPU-POD{ipus}", ipus) for ipus in (16, 64, 128, 256)),
    _BOW_2000,
    *(_pod(_BOW_2000, f"Bow Pod{ipus}", ipus) for ipus in (16, 64, 256, 1024)),
)
_OF_MACHINE = {"GC2": _C2, "GC200": _M2000, "Bow": _BOW_2000}


def systems() -> dict[str, System]:
    """The systems that are known, by name."""
    return {system.name: system for system in _SYSTEMS}


def system_of(machine: System | Machine | str) -> System:
    """The system that a name, a machine or a system stands for.

    Args:
      machine: A `System`, a `Machine` (which is put into the box that its kind is sold in), or a name of either.

    Raises:
      TypeError: It is none of them.
      ValueError: There is no machine or system of this name.
    """
    if isinstance(machine, System):
        return machine
    if isinstance(machine, Machine):
        box = _OF_MACHINE.get(machine.name, _M2000)
        return dataclasses.replace(box, name=machine.name, machine=machine)
    if not isinstance(machine, str):
        raise TypeError(f"`machine` must be a `Machine`, a `System` or a name, but is {machine!r}")
    named = {_key(name): system for name, system in (*_OF_MACHINE.items(), *systems().items())}
    found = named.get(_key(machine))
    if found is None:
        known = ", ".join(f"`{name}`" for name in (*_OF_MACHINE, *systems()))
        raise ValueError(f"`machine` is {machine!r}, which is not known; name one of {known}, or pass a `Machine`")
    return found


def _key(name: str) -> str:
    return name.casefold().replace("-", "").replace(" ", "")
