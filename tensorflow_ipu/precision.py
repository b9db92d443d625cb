"""What float16 makes of a model: where it overflows and what it loses, by layer and over steps, and what to do about it."""

from typing import TYPE_CHECKING, Any

from tensorflow_ipu.analysis.precision.figures import Figures, TensorRow
from tensorflow_ipu.analysis.precision.report import PrecisionReport, Scales, Trial

if TYPE_CHECKING:
    from tensorflow_ipu.analysis.precision.steps import precision_report

__all__ = ["Figures", "PrecisionReport", "Scales", "TensorRow", "Trial", "precision_report"]


if not TYPE_CHECKING:  # A misspelled name is an error for type checkers.

    def __getattr__(name: str) -> Any:
        # It needs TensorFlow, and whoever reads a saved report does not.
        if name == "precision_report":
            from tensorflow_ipu.analysis.precision.steps import precision_report

            return precision_report
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
