"""The commands `python -m tensorflow_ipu report` and `precision`, which show saved reports."""

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


def machine(arguments: Sequence[str]) -> int:
    """Shows a saved report of what a machine would make of a program, or compares two."""
    words = "Shows a report that `report.save` wrote, or what changed from one to another."
    return _run("report", words, arguments, _show_machine, compares=True)


def precision(arguments: Sequence[str]) -> int:
    """Shows a saved report of what float16 makes of a model."""
    return _run("precision", "Shows a report that `precision_report(...).save` wrote.", arguments, _show_precision)


def _show_machine(paths: list[Path], html: Path | None) -> None:
    from tensorflow_ipu.machine import Report, compare_reports

    loaded = [Report.load(path) for path in paths]
    print(compare_reports(*loaded) if len(loaded) > 1 else loaded[0])  # noqa: T201
    if html is not None:
        from tensorflow_ipu.machine.page import page  # matplotlib, which takes a while.

        html.write_text(page(loaded[-1], loaded[0] if len(loaded) > 1 else None), encoding="utf-8")


def _show_precision(paths: list[Path], html: Path | None) -> None:
    from tensorflow_ipu.precision import PrecisionReport

    report = PrecisionReport.load(paths[0])
    print(report)  # noqa: T201
    if html is not None:
        report.save(html)


def _run(
    name: str,
    description: str,
    arguments: Sequence[str],
    show: Callable[[list[Path], Path | None], None],
    compares: bool = False,
) -> int:
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
