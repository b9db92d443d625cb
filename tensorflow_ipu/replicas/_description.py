"""What a program says of itself before it runs: its HLO, and the user's line behind each of its operations."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._tensorflow import functions
from tensorflow_ipu.replicas._instruction_attributes import named_operations

if TYPE_CHECKING:
    import tensorflow as tf

_GENERATED = "__autograph_generated_file"


def user_frame(operation: tf.Operation) -> tuple[str, int] | None:
    """The innermost frame of an operation's making that is no part of TensorFlow, Keras, what it maps with, or this package."""
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


def hlo(program: functions.ConcreteFunction, inputs: Sequence[tf.Tensor], device: str) -> bytes:
    """The program as XLA gets it, before any optimisation; nothing is run."""
    with tf.device(device):
        return functions.hlo_of(program, inputs, device)


def user_lines(program: functions.ConcreteFunction | tf.Graph) -> dict[str, str]:
    """The innermost line of the user's code behind each operation of a program."""
    found: dict[str, str] = {}
    lines: dict[int, str | None] = {}  # Of operations by their ids: a function may be called from many places.
    graph: Any = getattr(program, "graph", program)
    for name, operation in named_operations(graph):
        if id(operation) not in lines:
            frame = user_frame(operation)
            lines[id(operation)] = None if frame is None else f"{os.path.basename(frame[0])}:{frame[1]}"
        line = lines[id(operation)]
        if line is not None:
            found[name] = line
    return found
