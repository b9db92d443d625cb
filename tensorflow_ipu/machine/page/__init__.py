"""A report as one page for a browser, which needs nothing beside itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorflow_ipu.machine.page._panels import panels, summary
from tensorflow_ipu.machine.page._template import PAGE

if TYPE_CHECKING:
    from tensorflow_ipu.machine._report import Report

__all__ = ["page"]


def page(report: Report) -> str:
    """Writes a report as HTML.

    Args:
      report: The report.

    Raises:
      ImportError: matplotlib is missing.
    """
    title, head = summary(report)
    return PAGE.substitute(title=title, summary=head, panels="\n".join(panels(report)))
