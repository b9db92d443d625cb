"""Runs a command that shows saved reports."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

_WRONG = 2

_EXAMPLES = """\
examples:
  a.json                        the report as text
  a.json --html a.html          and as a page for a browser
"""
_EXAMPLE_OF_TWO = "  a.json b.json                 what changed from one to the other\n"


def run(
    name: str,
    description: str,
    arguments: Sequence[str],
    show: Callable[[list[Path], Path | None], None],
    compares: bool = False,
) -> int:
    """Executes a command line."""
    parser = argparse.ArgumentParser(
        prog=f"python -m tensorflow_ipu {name}",
        description=description,
        epilog=_EXAMPLES + _EXAMPLE_OF_TWO * compares,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("report", metavar="A.json", type=Path, help="a report")
    if compares:
        parser.add_argument("other", metavar="B.json", type=Path, nargs="?", help="another, to compare the first with")
    parser.add_argument("--html", metavar="OUT.html", type=Path, help="write a page for a browser")
    options = parser.parse_args(arguments)
    try:
        if options.html is not None and options.html.suffix != ".html":
            raise ValueError(f"`--html {options.html}` must end in `.html`")
        show([path for path in (options.report, getattr(options, "other", None)) if path is not None], options.html)
    except OSError as exc:
        print(f"{parser.prog}: `{exc.filename}`: {exc.strerror}", file=sys.stderr)  # noqa: T201
        return _WRONG
    except (ValueError, ImportError) as exc:  # A page has pictures, by a library that may be missing.
        print(f"{parser.prog}: {exc}", file=sys.stderr)  # noqa: T201
        return _WRONG
    return 0
