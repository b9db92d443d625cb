"""A report as one page for a browser, which needs nothing beside itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorflow_ipu._base import page as whole
from tensorflow_ipu.analysis.machine.page._panels import LOOKS, SCRIPT, comparison, panels, summary

if TYPE_CHECKING:
    from tensorflow_ipu.analysis.machine._report import Report

__all__ = ["comparison_page", "page"]


def page(report: Report, before: Report | None = None) -> str:
    """Writes a report as HTML."""
    title, head = summary(report)
    changes = [] if before is None else [comparison(before, report)]
    return whole.page(title, head, "\n".join([*changes, *panels(report)]), LOOKS, SCRIPT)


def comparison_page(before: Report, after: Report) -> str:
    """Writes what changed from one report to another as HTML."""
    title, head = summary(after)
    return whole.page(title, head, comparison(before, after), LOOKS)
