"""Machines: the tiles, memory and rates of an IPU, and the links of systems of IPUs."""

from __future__ import annotations

import dataclasses
import math
import re
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorflow_ipu._base import machine_names
from tensorflow_ipu._base.checks import Faults, is_int, is_number

if TYPE_CHECKING:
    from tensorflow_ipu.analysis.machine.report import Report

# Types up to this size are computed at the rates of float16.
_BYTES_OF_HALF = 2


@dataclass(frozen=True)
class Machine:
    """One IPU. Rates, cycles and bytes are per tile, unless an attribute states otherwise.

    To change a field, call `dataclasses.replace(GC200, tiles=736)`.

    Attributes:
      name: The name in reports.
      tiles: The number of tiles of the IPU.
      tile_bytes: The memory of a tile, in bytes, for data, code and buffers of exchanges.
      clock_hz: Cycles a second.
      half_macs: Multiply-adds a cycle of the matrix unit in float16, with float16 or float32 sums.
      float_macs: Multiply-adds a cycle of the matrix unit in float32.
      half_elements: Elements a cycle of elementwise arithmetic in float16.
      float_elements: Elements a cycle of elementwise arithmetic in float32.
      half_functions: Elements a cycle of functions (exponential, logarithm, division and the like) in float16.
      float_functions: Elements a cycle of such functions in float32.
      exchange_bytes: Bytes a cycle that a tile receives from other tiles.
      copy_bytes: Bytes a cycle that a tile moves within its memory.
      weight_bytes: Bytes of weights a cycle that the matrix unit loads.
      sync_cycles: Cycles of one synchronisation of the tiles of an IPU, including the launch of the next phase.
      global_sync_cycles: Cycles of one synchronisation of several IPUs.
      io_tiles: The number of tiles, out of `tiles`, that only transfer data between host and chip.
    """

    name: str
    tiles: int
    tile_bytes: int
    clock_hz: float
    half_macs: float
    float_macs: float
    half_elements: float = 4.0
    float_elements: float = 2.0
    half_functions: float = 1.0
    float_functions: float = 0.5
    exchange_bytes: float = 4.0
    copy_bytes: float = 8.0
    weight_bytes: float = 16.0
    sync_cycles: float = 250.0
    global_sync_cycles: float = 600.0
    io_tiles: int = 0

    def __post_init__(self) -> None:
        faults = Faults()
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "name":
                if not isinstance(value, str):
                    faults.add(TypeError, f"`name` must be a string, but is {value!r}")
            elif not is_number(value):
                faults.add(TypeError, f"`{field.name}` must be a number, but is {value!r}")
            elif field.name in ("tiles", "tile_bytes", "io_tiles") and not isinstance(value, int):
                faults.add(TypeError, f"`{field.name}` must be a whole number, but is {value!r}")
            elif not math.isfinite(value) or value < 0 or (value == 0 and field.name != "io_tiles"):
                faults.add(ValueError, f"`{field.name}` must be above 0, but is {value!r}")
        faults.raise_any()
        if self.io_tiles >= self.tiles:
            raise ValueError(f"`io_tiles` is {self.io_tiles} of {self.tiles} tiles, which leaves none to compute")

    @property
    def compute_tiles(self) -> int:
        """The number of tiles that compute."""
        return self.tiles - self.io_tiles

    @property
    def bytes(self) -> int:
        """The memory of the tiles that compute, in bytes."""
        return self.compute_tiles * self.tile_bytes

    @property
    def peak_half_flops(self) -> float:
        """Floating-point operations a second of all matrix units in float16. A multiply-add counts as two."""
        return 2 * self.compute_tiles * self.half_macs * self.clock_hz

    @property
    def peak_float_flops(self) -> float:
        """Floating-point operations a second of all matrix units in float32. A multiply-add counts as two."""
        return 2 * self.compute_tiles * self.float_macs * self.clock_hz

    def macs(self, item_bytes: int) -> float:
        """Returns the multiply-adds a cycle of a tile for operands of `item_bytes` bytes an element."""
        return self.half_macs if item_bytes <= _BYTES_OF_HALF else self.float_macs

    def elements(self, item_bytes: int) -> float:
        """Returns the elements a cycle of elementwise arithmetic.

        An 8-byte type takes twice as long as a 4-byte type.
        """
        if item_bytes <= _BYTES_OF_HALF:
            return self.half_elements
        return self.float_elements * 4 / max(4, item_bytes)

    def functions(self, item_bytes: int) -> float:
        """Returns the elements a cycle of functions such as the exponential."""
        if item_bytes <= _BYTES_OF_HALF:
            return self.half_functions
        return self.float_functions * 4 / max(4, item_bytes)


# Tiles, memory and clock of the three generations.
#
# * Tiles and tile memory: Jia and others, "Dissecting the Graphcore IPU Architecture via Microbenchmarking",
#   arXiv:1912.03413 (1,216 tiles of 256 KiB), and the data sheets of the IPU-M2000 and the Bow-2000 (1,472 a chip;
#   3.6 GB of four chips are 624 KiB a tile).
# * Clock: computed from the multiply-adds a cycle and the published peaks: 124.5 TFLOP/s (the same paper),
#   31.955 PFLOP/s of 128 chips (data sheet of the IPU-POD128), 1.4 PFLOP/s of 4 (data sheet of the Bow-2000).
# * Exchange: 8 TB/s "any pattern" of a GC200 are 4 bytes a cycle a tile.
GC2 = Machine("GC2", tiles=1216, tile_bytes=256 * 1024, clock_hz=1.6e9, half_macs=32, float_macs=8)
"""The first generation (Mk1)."""
GC200 = Machine("GC200", tiles=1472, tile_bytes=624 * 1024, clock_hz=1.325e9, half_macs=64, float_macs=16)
"""The second generation (Mk2)."""
BOW = dataclasses.replace(GC200, name="Bow", clock_hz=1.85e9)
"""The second generation with a faster clock."""

_GIGA = 1e9


@dataclass(frozen=True)
class System:
    """IPUs of one kind, connected by links, with a host and Streaming Memory off the chips.

    To change a field, call `dataclasses.replace`.

    Attributes:
      name: The name in reports.
      machine: The kind of the IPUs.
      ipus: The number of IPUs.
      link_bytes_per_second: Bytes a second that an IPU sends to its neighbours, and at the same time receives.
      link_latency_seconds: Seconds from the start of a transfer between two neighbours until its first byte arrives.
      gateway_bytes_per_second: Bytes a second of an IPU's share of the links between Pods, for programs on several
        Pods.
      ipus_of_pod: The number of IPUs that links connect. Gateways connect larger systems.
      host_bytes_per_second: Bytes a second that an IPU reads from its host, or writes to it, while all IPUs do so.
      streaming_bytes: Bytes of Streaming Memory (the memory off the chips) for each IPU.
      streaming_bytes_per_second: Bytes a second of Streaming Memory that an IPU reads or writes while all IPUs do so.
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
        if not is_int(self.ipus) or self.ipus < 1:
            raise ValueError(f"`ipus` must be 1 or more, but is {self.ipus!r}")


# * Links: ten of 32 GB/s a chip, together 320 GB/s in and out. Traffic in one direction gets half of it (data sheets:
#   IPU-Link 512 Gbit/s a machine's port, 2.5 Tbit/s of links a chip).
# * Gateways: two of 100 Gbit/s for the four chips of a machine (data sheet of the Bow-2000).
# * Host: one 100 Gbit/s RDMA interface for the four chips of a machine (same). A C2 card: PCIe Gen4 x16 for two.
# * Streaming Memory: up to 256 GB a machine (same). No data sheet has its bandwidth. 20 GB/s a machine is often quoted,
#   and is the least certain figure here.
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
    streaming_bytes_per_second=31.5 * _GIGA / 2,  # A C2 has no Streaming Memory and uses the host's.
)
_BOW_2000 = dataclasses.replace(_M2000, name="Bow-2000", machine=BOW)


_OF_MACHINE = {"GC2": _C2, "GC200": _M2000, "Bow": _BOW_2000}
_BOXES = {box.name: box for box in _OF_MACHINE.values()}


def _system(name: str) -> System:
    if name in _BOXES:
        return _BOXES[name]
    family, _, ipus = name.lower().partition("pod")
    return dataclasses.replace(_BOW_2000 if family == "bow " else _M2000, name=name, ipus=int(ipus))


def systems() -> dict[str, System]:
    """Returns the supported systems by name."""
    return {name: _system(name) for name in machine_names.SYSTEMS}


def system_of(machine: System | Machine | str) -> System:
    """Returns the system of a `System`, a `Machine`, or the name of one.

    The system of a `Machine` is the smallest one that was sold with this kind of IPU: for example, an IPU-M2000 for
    `GC200`.

    Raises:
      TypeError: `machine` is neither of these.
      ValueError: No machine or system has this name.
    """
    if isinstance(machine, System):
        return machine
    if isinstance(machine, Machine):
        box = _OF_MACHINE.get(machine.name, _M2000)
        return dataclasses.replace(box, name=machine.name, machine=machine)
    if not isinstance(machine, str):
        raise TypeError(f"`machine` must be a `Machine`, a `System` or a name, but is {machine!r}")
    name = machine_names.known_name(machine)
    if name is None:
        supported = ", ".join(f"`{name}`" for name in machine_names.NAMES)
        raise ValueError(f"`machine` is {machine!r}, which is not known; name one of {supported}, or pass a `Machine`")
    if name in machine_names.SYSTEMS:
        return _system(name)
    return next(_OF_MACHINE[ipu] for ipu, aliases in machine_names.IPUS.items() if name in (ipu, *aliases))


_PROPORTION = 0.6  # The default of PopLibs.


class Setting(NamedTuple):
    """The machine and the options of a prediction.

    Attributes:
      system: The machine.
      proportion: The `availableMemoryProportion` of matrix products and convolutions.
    """

    system: System
    proportion: float


def setting_of(machine: System | Machine | str | None, options: Mapping[str, Any] | None) -> Setting:
    """Returns the setting of a prediction, from a machine and the device's configuration.

    Args:
      machine: As for `system_of`. If None, the machine is that of the option `ipu_model.version`, with
        `ipu_model.tiles_per_ipu` tiles unless that option is 0.
      options: The options of the device's `IPUConfig` by full name, such as `io_tiles.num_io_tiles`.

    Raises:
      TypeError: As `system_of`.
      ValueError: As `system_of`.
    """
    options = options or {}
    if machine is None:
        # An empty version means the default of the device.
        name = machine_names.known_name(options.get("ipu_model.version", "")) or "ipu2"
        system = system_of(name)
        tiles = options.get("ipu_model.tiles_per_ipu", 0)
        ipu = dataclasses.replace(system.machine, tiles=tiles) if tiles else system.machine
        system = dataclasses.replace(system, machine=ipu) if name in machine_names.SYSTEMS else system_of(ipu)
    else:
        system = system_of(machine)
    io_tiles = options.get("io_tiles.num_io_tiles", 0)
    if io_tiles and not system.machine.io_tiles:
        system = dataclasses.replace(system, machine=dataclasses.replace(system.machine, io_tiles=io_tiles))
    libraries = (options.get(f"{name}.poplar_options", {}) for name in ("matmuls", "convolutions"))
    proportions = [
        float(library["availableMemoryProportion"]) for library in libraries if "availableMemoryProportion" in library
    ]
    return Setting(system, min(proportions, default=_PROPORTION))


_lock = threading.Lock()
_counts: Counter[Path] = Counter()  # The number of reports saved under each name.


def autosave(report: Report, directory: str) -> Path:
    """Saves a report in a folder as JSON and as a page, and returns the path of the JSON file.

    Files are named after the program, such as `train.json`. Later reports of the same name in this process have a
    number, such as `train_2.json`.

    Raises:
      OSError: The folder cannot be created or written to.
    """
    folder = Path(directory).expanduser().resolve()
    base = folder / (re.sub(r"[^\w.-]+", "_", report.program).strip("_") or "program")
    with _lock:
        _counts[base] += 1
        number = _counts[base]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (f"{base.name}_{number}.json" if number > 1 else f"{base.name}.json")
    report.save(path)
    report.save(path.with_suffix(".html"))
    return path
