"""The command `precision`: shows a saved report on the effect of float16 on a model."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tensorflow_ipu.cli.parsers import execute, show, show_json
from tensorflow_ipu.cli.report import check_page, load, report_parser


def parser() -> argparse.ArgumentParser:
    return report_parser("precision", "Shows a report that `precision_report(...).save` wrote.")


def main(arguments: Sequence[str]) -> int:
    return execute(parser(), arguments, _show)


def _show(options: argparse.Namespace) -> None:
    from tensorflow_ipu.precision import PrecisionReport

    check_page(options)
    report = load(PrecisionReport, options.report, "precision")
    show_json(report.to_dict()) if options.json else show(str(report))
    if options.html is not None:
        report.save(options.html)
