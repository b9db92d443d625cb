"""Tracebacks that end in the user's code, where the package has found a fault in what it was called with."""

from __future__ import annotations

import pathlib
import types
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tensorflow_ipu._tensorflow import autograph

_OTHERS = (str(pathlib.Path(__file__).parents[1]), str(pathlib.Path(tf.__file__).parent))
# What AutoGraph made of the user's code: its message has the lines that the user wrote.
_GENERATED = "__autograph_generated_file"


def shortened(error: Exception) -> Exception:
    """Takes the frames of the package and of TensorFlow out of an exception's traceback, to be raised again.

    They stay where TensorFlow's are to stay too: after `tf.debugging.disable_traceback_filtering()`.
    """
    if not tf.debugging.is_traceback_filtering_enabled():
        return error
    return _filtered(error, lambda filename: filename.startswith(_OTHERS) or _GENERATED in filename)


def blamed_on_call(error: Exception) -> Exception:
    """The same, where a function of the package is left. If it found the fault itself, AutoGraph tells of its call alone."""
    if not tf.debugging.is_traceback_filtering_enabled():
        return error
    # What AutoGraph made of the user's code stays for now: it has yet to find the user's lines by it.
    marked: Any = _filtered(error, lambda filename: filename.startswith(_OTHERS))
    if error.__traceback__ is None and not hasattr(error, "ag_error_metadata"):
        marked.ag_error_metadata = autograph.without_lines(f"{type(error).__name__}: {error}")
    return marked


def _filtered(error: Exception, is_dropped: Callable[[str], bool]) -> Exception:
    frames = []
    innermost = error.__traceback__
    while innermost is not None:
        if not is_dropped(innermost.tb_frame.f_code.co_filename):
            frames.append(innermost)
        innermost = innermost.tb_next
    kept = None
    for frame in reversed(frames):
        kept = types.TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return error.with_traceback(kept)
