"""Reports on a model in float16: overflows and lost precision, by layer and over steps, with advice."""

from typing import TYPE_CHECKING, Any

from tensorflow_ipu.analysis.precision.figures import Figures, TensorRow
from tensorflow_ipu.analysis.precision.report import PrecisionReport, Scales, Trial

if TYPE_CHECKING:
    from tensorflow_ipu.analysis.precision.steps import precision_report

__all__ = ["Figures", "PrecisionReport", "Scales", "TensorRow", "Trial", "precision_report"]


if not TYPE_CHECKING:  # Type checkers must reject misspelled names.

    def __getattr__(name: str) -> Any:
        # This function needs TensorFlow, but reading a saved report does not.
        if name == "precision_report":
            from tensorflow_ipu.analysis.precision.steps import precision_report

            return precision_report
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
