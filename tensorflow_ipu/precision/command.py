"""The command `python -m tensorflow_ipu precision`: shows a saved report on precision again, as text or as a page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tensorflow_ipu.precision._report import PrecisionReport

_WRONG = 2

_EPILOG = """\
examples:
  a.json                        the report as text
  a.json --html a.html          and as a page for a browser
"""


def main(arguments: Sequence[str]) -> int:
    """Executes a command line.

    Args:
      arguments: The words behind `python -m tensorflow_ipu precision`.

    Returns:
      The exit status: 0, or 2 where a file cannot be read or written.

    Raises:
      SystemExit: The command line is wrong, or asks for help.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tensorflow_ipu precision",
        description="Shows a report that `precision_report(...).save` wrote.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("report", metavar="A.json", type=Path, help="a report")
    parser.add_argument("--html", metavar="OUT.html", type=Path, help="write a page for a browser")
    options = parser.parse_args(arguments)
    try:
        if options.html is not None and options.html.suffix != ".html":
            raise ValueError(f"`--html {options.html}` must end in `.html`")
        report = PrecisionReport.load(options.report)
        print(report)  # noqa: T201
        if options.html is not None:
            report.save(options.html)
    except OSError as exc:
        print(f"{parser.prog}: `{exc.filename}`: {exc.strerror}", file=sys.stderr)  # noqa: T201
        return _WRONG
    except ValueError as exc:
        print(f"{parser.prog}: {exc}", file=sys.stderr)  # noqa: T201
        return _WRONG
    return 0
