"""What float16 makes of a model: where it overflows and what it loses, by layer and over steps."""

from typing import TYPE_CHECKING, Any

from tensorflow_ipu.analysis import precision as _room
from tensorflow_ipu.analysis.precision import *  # noqa: F403
from tensorflow_ipu.analysis.precision import __all__  # noqa: F401

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return getattr(_room, name)  # `precision_report`, which imports TensorFlow.
