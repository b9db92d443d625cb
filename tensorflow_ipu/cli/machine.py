"""The command `python -m tensorflow_ipu report`, which shows a saved report or compares two."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tensorflow_ipu.cli import reports
from tensorflow_ipu.machine._comparison import compare_reports
from tensorflow_ipu.machine._report import Report


def main(arguments: Sequence[str]) -> int:
    """Executes a command line."""
    words = "Shows a report that `report.save` wrote, or what changed from one to another."
    return reports.run("report", words, arguments, _show, compares=True)


def _show(paths: list[Path], html: Path | None) -> None:
    loaded = [Report.load(path) for path in paths]
    print(compare_reports(*loaded) if len(loaded) > 1 else loaded[0])  # noqa: T201
    if html is not None:
        from tensorflow_ipu.machine.page import page  # matplotlib, which takes a while.

        html.write_text(page(loaded[-1], loaded[0] if len(loaded) > 1 else None), encoding="utf-8")
