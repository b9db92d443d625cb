"""Reports that are saved without being asked for one by one."""

from __future__ import annotations

import importlib.util
import re
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorflow_ipu.machine._report import Report

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
