"""The command `report`: shows saved reports on the predicted time and memory of programs on real IPUs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from tensorflow_ipu._base import files
from tensorflow_ipu.analysis.saved import SavedReport
from tensorflow_ipu.cli.parsers import add_json, execute, kind_of, make_parser, program, show, show_json

_EXAMPLES = """\
examples:
  a.json                        the report as text
  a.json --html a.html          the same, and a page for a browser
"""
_EXAMPLE_OF_TWO = "  a.json b.json                 the differences between two reports\n"


def parser() -> argparse.ArgumentParser:
    description = "Shows a report that `report.save` wrote, or the differences between two reports."
    command_parser = report_parser("report", description, _EXAMPLES + _EXAMPLE_OF_TWO)
    command_parser.add_argument(
        "other", metavar="B.json", type=Path, nargs="?", help="a report to compare with the first"
    )
    return command_parser


def report_parser(name: str, description: str, examples: str = _EXAMPLES) -> argparse.ArgumentParser:
    """Returns the parser of a command that shows a report."""
    command_parser = make_parser(name, description, "0", examples=examples)
    command_parser.add_argument("report", metavar="A.json", type=Path, help="a saved report")
    command_parser.add_argument("--html", metavar="OUT.html", type=Path, help="write a page for a browser to this file")
    add_json(command_parser)
    return command_parser


def main(arguments: Sequence[str]) -> int:
    return execute(parser(), arguments, _show)


def check_page(options: argparse.Namespace) -> None:
    """Raises a ValueError if the file of `--html` does not end in `.html`."""
    if options.html is not None and options.html.suffix != ".html":
        raise ValueError(f"`--html {options.html}` must end in `.html`")


_Report = TypeVar("_Report", bound=SavedReport)


def load(kind: type[_Report], path: Path, command: str = "report") -> _Report:
    """Loads a report. If the file is of another kind, the error names the program that shows it."""
    try:
        return kind.load(path)
    except ValueError:
        description = kind_of(path)
        if not description or f"{program()} {command} " in description:
            raise
        raise ValueError(f"`{path}` {description}") from None


def _show(options: argparse.Namespace) -> None:
    from tensorflow_ipu.analysis.machine.text import changed_figures, changed_operations
    from tensorflow_ipu.machine import Report, compare_reports

    check_page(options)
    loaded = [load(Report, path) for path in (options.report, options.other) if path is not None]
    old, new = loaded[0], loaded[-1]
    if options.json and options.other is None:
        show_json(new.to_dict())
    elif options.json:
        changes = {"figures": changed_figures(old, new), "operations": changed_operations(old, new)}
        keys = ("name", "before", "after")
        show_json(
            {
                title: [{key: getattr(change, key) for key in keys} for change in changed]
                for title, changed in changes.items()
            }
        )
    else:
        show(compare_reports(old, new) if options.other else str(new))
    if options.html is not None:
        from tensorflow_ipu.analysis.pages import report_page

        files.write(options.html, report_page(new, old if options.other else None))
