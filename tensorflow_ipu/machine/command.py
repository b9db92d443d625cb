"""The command `python -m tensorflow_ipu report`: shows a saved report again, or compares two, without TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tensorflow_ipu._reports import command
from tensorflow_ipu.machine._comparison import compare_reports
from tensorflow_ipu.machine._report import Report


def main(arguments: Sequence[str]) -> int:
    """Executes a command line: the words behind `python -m tensorflow_ipu report`. See `command.run`."""
    words = "Shows a report that `report.save` wrote, or what changed from one to another."
    return command.run("report", words, arguments, _show, compares=True)


def _show(paths: list[Path], html: Path | None) -> None:
    reports = [Report.load(path) for path in paths]
    print(compare_reports(*reports) if len(reports) > 1 else reports[0])  # noqa: T201
    if html is not None:
        from tensorflow_ipu.machine.page import page  # matplotlib, which takes a while.

        html.write_text(page(reports[-1], reports[0] if len(reports) > 1 else None), encoding="utf-8")
