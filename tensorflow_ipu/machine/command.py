"""The command `python -m tensorflow_ipu report`: shows a saved report again, or compares two, without TensorFlow."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tensorflow_ipu.machine._comparison import compare_reports
from tensorflow_ipu.machine._report import Report

_WRONG = 2

_EPILOG = """\
examples:
  a.json                        the report as text
  a.json --html a.html          and as a page for a browser
  a.json b.json                 what changed from one to the other
"""


def main(arguments: Sequence[str]) -> int:
    """Executes a command line.

    Args:
      arguments: The words behind `python -m tensorflow_ipu report`.

    Returns:
      The exit status: 0, or 2 where a file cannot be read or written.

    Raises:
      SystemExit: The command line is wrong, or asks for help.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tensorflow_ipu report",
        description="Shows a report that `report.save` wrote, or what changed from one to another.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("report", metavar="A.json", type=Path, help="a report")
    parser.add_argument("other", metavar="B.json", type=Path, nargs="?", help="another, to compare the first with")
    parser.add_argument("--html", metavar="OUT.html", type=Path, help="write a page for a browser")
    options = parser.parse_args(arguments)
    try:
        if options.html is not None and options.html.suffix != ".html":
            raise ValueError(f"`--html {options.html}` must end in `.html`")
        reports = [Report.load(path) for path in (options.report, options.other) if path is not None]
        print(compare_reports(*reports) if len(reports) > 1 else reports[0])  # noqa: T201
        if options.html is not None:
            from tensorflow_ipu.machine.page import page  # matplotlib, which takes a while.

            options.html.write_text(page(reports[-1], reports[0] if len(reports) > 1 else None), encoding="utf-8")
    except OSError as exc:
        print(f"{parser.prog}: `{exc.filename}`: {exc.strerror}", file=sys.stderr)  # noqa: T201
        return _WRONG
    except (ValueError, ImportError) as exc:
        print(f"{parser.prog}: {exc}", file=sys.stderr)  # noqa: T201
        return _WRONG
    return 0
