"""The machine that the configuration in force speaks of."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorflow_ipu.machine._machine import BOW, GC2, GC200, Machine, System, system_of

if TYPE_CHECKING:
    from tensorflow_ipu.machine._report import Report

# By `ipu_model.version`; "" leaves it to the device.
_VERSIONS = {"ipu1": GC2, "ipu2": GC200, "ipu21": BOW, "": GC200}
_PROPORTION = 0.6  # The default of PopLibs.


class Setting(NamedTuple):
    """What to predict for.

    Attributes:
      system: The machine.
      proportion: `availableMemoryProportion` of matrix products and convolutions.
    """

    system: System
    proportion: float


def setting_of(machine: System | Machine | str | None, options: Mapping[str, Any] | None) -> Setting:
    """What to predict for: the machine that the caller asks for, with what the configuration says of its use.

    Args:
      machine: A `System`, a `Machine`, a name of either; or None for the machine of `ipu_model.version`, with
        `ipu_model.tiles_per_ipu` tiles where that is not 0.
      options: What is configured for the device, by full names; None where nothing is.

    Raises:
      TypeError: `machine` is none of these.
      ValueError: There is no machine of this name.
    """
    options = options or {}
    system = system_of(_modelled(options) if machine is None else machine)
    io_tiles = options.get("io_tiles.num_io_tiles", 0)
    if io_tiles and not system.machine.io_tiles:
        system = dataclasses.replace(system, machine=dataclasses.replace(system.machine, io_tiles=io_tiles))
    return Setting(system, _proportion(options))


def _modelled(options: Mapping[str, Any]) -> Machine:
    machine = _VERSIONS[options.get("ipu_model.version", "")]
    tiles = options.get("ipu_model.tiles_per_ipu", 0)
    return dataclasses.replace(machine, tiles=tiles) if tiles else machine


def _proportion(options: Mapping[str, Any]) -> float:
    """The lesser of the proportions of products and of convolutions."""
    given = [
        float(options[name]["availableMemoryProportion"])
        for name in ("matmuls.poplar_options", "convolutions.poplar_options")
        if "availableMemoryProportion" in options.get(name, ())
    ]
    return min(given, default=_PROPORTION)


_lock = threading.Lock()
_counts: Counter[Path] = Counter()  # By the file's path without its number.


def autosave(report: Report, directory: str) -> Path:
    """Saves a report as JSON, and as a page where matplotlib is there, under the name of its program.

    The second report of a name in this process is numbered 2, and so on. Files of earlier processes are written over.

    Args:
      report: The report.
      directory: The folder, which is made if it does not exist.

    Returns:
      The path of the JSON.

    Raises:
      OSError: The folder cannot be made, or written to.
    """
    folder = Path(directory).expanduser().resolve()
    plain = folder / (re.sub(r"[^\w.-]+", "_", report.program).strip("_") or "program")
    with _lock:
        _counts[plain] += 1
        number = _counts[plain]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (f"{plain.name}_{number}.json" if number > 1 else f"{plain.name}.json")
    report.save(path)
    if importlib.util.find_spec("matplotlib") is not None:
        report.save(path.with_suffix(".html"))
    return path
