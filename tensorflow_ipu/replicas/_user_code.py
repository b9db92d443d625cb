"""Which line of the user's code an operation of a program comes from."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf


_GENERATED = "__autograph_generated_file"


def user_frame(operation: tf.Operation) -> tuple[str, int] | None:
    """The innermost frame of an operation's making that is no part of TensorFlow, Keras, what it maps with, or this package.

    Args:
      operation: An operation of a graph.

    Returns:
      The file and the line; None where no frame is the user's.
    """
    for frame in reversed(list(operation.traceback or ())):
        if _is_of_user(frame.filename):
            return frame.filename, frame.lineno
    return None


def _is_of_user(filename: str) -> bool:
    # What AutoGraph made of a function that this package was handed has no lines of the user's: its caller has.
    return not filename.startswith(_libraries()) and _GENERATED not in filename


@functools.cache
def _libraries() -> tuple[str, ...]:
    # TensorFlow makes the wrappers of loaded operations from strings.
    loaded = [sys.modules[name] for name in ("tensorflow", "keras", "optree", "tensorflow_ipu") if name in sys.modules]
    return ("<string>", *(f"{Path(module.__file__ or '').parent}/" for module in loaded))


def stack_level() -> int:
    """The `stacklevel` by which the caller of this warns of the user's line, as `warnings.warn` counts."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and not _is_of_user(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return level
