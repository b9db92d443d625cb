"""The command `python -m tensorflow_ipu precision`, which shows a saved report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tensorflow_ipu.cli import reports
from tensorflow_ipu.precision._report import PrecisionReport


def main(arguments: Sequence[str]) -> int:
    """Executes a command line."""
    return reports.run("precision", "Shows a report that `precision_report(...).save` wrote.", arguments, _show)


def _show(paths: list[Path], html: Path | None) -> None:
    report = PrecisionReport.load(paths[0])
    print(report)  # noqa: T201
    if html is not None:
        report.save(html)
