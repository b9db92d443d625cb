"""HTML pages for browsers and notebooks. Each is one self-contained file."""

from tensorflow_ipu.analysis.pages import objects, precision, report
from tensorflow_ipu.analysis.pages.report import report_page
from tensorflow_ipu.analysis.pages.templates import frame_of, page_of

__all__ = ["frame_of", "objects", "page_of", "precision", "report", "report_page"]
