"""What float16 makes of a model: where it overflows and what it loses, by layer and over steps, and what to do about it."""

from typing import TYPE_CHECKING, Any

from tensorflow_ipu.analysis import precision as _room
from tensorflow_ipu.analysis.precision import Figures, PrecisionReport, Scales, TensorRow, Trial

if TYPE_CHECKING:
    from tensorflow_ipu.analysis.precision import precision_report

__all__ = ["Figures", "PrecisionReport", "Scales", "TensorRow", "Trial", "precision_report"]

if not TYPE_CHECKING:  # A misspelled name is an error for type checkers.

    def __getattr__(name: str) -> Any:
        return getattr(_room, name)  # `precision_report`, which imports TensorFlow.
