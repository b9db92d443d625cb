"""The command `report`, which shows saved reports of what a machine would make of a program."""

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
  a.json --html a.html          and as a page for a browser
"""
_EXAMPLE_OF_TWO = "  a.json b.json                 what changed from one to the other\n"


def parser() -> argparse.ArgumentParser:
    words = "Shows a report that `report.save` wrote, or what changed from one to another."
    made = report_parser("report", words, _EXAMPLES + _EXAMPLE_OF_TWO)
    made.add_argument("other", metavar="B.json", type=Path, nargs="?", help="another, to compare the first with")
    return made


def report_parser(name: str, description: str, examples: str = _EXAMPLES) -> argparse.ArgumentParser:
    """The parser of a command that shows a report."""
    made = make_parser(name, description, "0", examples=examples)
    made.add_argument("report", metavar="A.json", type=Path, help="a report")
    made.add_argument("--html", metavar="OUT.html", type=Path, help="write a page for a browser")
    add_json(made)
    return made


def main(arguments: Sequence[str]) -> int:
    return execute(parser(), arguments, _show)


def check_page(options: argparse.Namespace) -> None:
    """Raises an error if the name of the page is none."""
    if options.html is not None and options.html.suffix != ".html":
        raise ValueError(f"`--html {options.html}` must end in `.html`")


_Report = TypeVar("_Report", bound=SavedReport)


def load(kind: type[_Report], path: Path, command: str = "report") -> _Report:
    """Reads a report for a command; of another file, the error says what shows that."""
    try:
        return kind.load(path)
    except ValueError:
        other = kind_of(path)
        if not other or f"{program()} {command} " in other:
            raise
        raise ValueError(f"`{path}` {other}") from None


def _show(options: argparse.Namespace) -> None:
    from tensorflow_ipu.analysis.machine.text import changed_figures, changed_operations
    from tensorflow_ipu.machine import Report, compare_reports

    check_page(options)
    loaded = [load(Report, path) for path in (options.report, options.other) if path is not None]
    after, before = loaded[-1], loaded[0]
    if options.json and options.other is None:
        show_json(after.to_dict())
    elif options.json:
        changes = {"figures": changed_figures(before, after), "operations": changed_operations(before, after)}
        keys = ("name", "before", "after")
        show_json(
            {
                title: [{key: getattr(change, key) for key in keys} for change in changed]
                for title, changed in changes.items()
            }
        )
    else:
        show(compare_reports(before, after) if options.other else str(after))
    if options.html is not None:
        from tensorflow_ipu.analysis.pages import report_page

        files.write(options.html, report_page(after, before if options.other else None))
