"""Finds the user's lines that created operations, and removes library frames from tracebacks."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import tensorflow as tf

from tensorflow_ipu._base import environment
from tensorflow_ipu._tensorflow import autograph, functions
from tensorflow_ipu._tensorflow.graphs import named_operations

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Error = TypeVar("_Error", bound=BaseException)

_GENERATED = "__autograph_generated_file"  # AutoGraph's translation of the user's code.
_LIBRARY_FILES = (str(Path(__file__).parents[1]), str(Path(tf.__file__).parent), contextlib.__file__)


def _shows_all() -> bool:
    return environment.full_tracebacks() or not tf.debugging.is_traceback_filtering_enabled()


def user_lines_alone(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Limits tracebacks of a public function to the user's lines, as Keras does, unless full tracebacks are on."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except Exception as exc:
            raise _with_user_frames(exc)  # noqa: B904  (It is the same exception.)

    return call


def _with_user_frames(error: Exception) -> Exception:
    if _shows_all():
        return error
    if not tf.executing_eagerly():  # AutoGraph needs the frames of its generated code to find the user's lines.
        return _filtered(error, lambda filename: filename.startswith(_LIBRARY_FILES))
    chained: BaseException | None = error
    while chained is not None:
        cause = chained.__cause__ or (None if chained.__suppress_context__ else chained.__context__)
        if cause is not None and not _filtered(cause, lambda filename: not _is_of_user(filename)).__traceback__:
            chained.__cause__ = cause = None  # A cause without user frames is not shown.
        chained = cause
    return _filtered(error, lambda filename: not _is_of_user(filename))


def shortened(error: Exception) -> Exception:
    """Removes the frames of the package and TensorFlow from a traceback, unless full tracebacks are on."""
    if _shows_all():
        return error
    return _filtered(error, lambda filename: filename.startswith(_LIBRARY_FILES) or _GENERATED in filename)


def blamed_on_call(error: Exception) -> Exception:
    """Removes the frames of the package and TensorFlow from an error that a function of the package raises.

    If no frame of the user remains, the error is from the package's own check. AutoGraph then names only the user's
    call.
    """
    if _shows_all():
        return error
    # AutoGraph needs the frames of its generated code to find the user's lines.
    marked: Any = _filtered(error, lambda filename: filename.startswith(_LIBRARY_FILES))
    if error.__traceback__ is None and not hasattr(error, "ag_error_metadata"):
        marked.ag_error_metadata = autograph.without_lines(f"{type(error).__name__}: {error}")
    return marked


def _filtered(error: _Error, is_dropped: Callable[[str], bool]) -> _Error:
    frames = []
    innermost = error.__traceback__
    while innermost is not None:
        if not is_dropped(_file_of(innermost.tb_frame)):
            frames.append(innermost)
        innermost = innermost.tb_next
    traceback = None
    for frame in reversed(frames):
        traceback = types.TracebackType(traceback, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return error.with_traceback(traceback)


def _file_of(frame: types.FrameType) -> str:
    # Code that is generated at run time, such as the `__init__` of a dataclass, belongs to the module that uses it.
    name = frame.f_code.co_filename
    return frame.f_globals.get("__file__", name) if name == "<string>" else name


def user_frame(operation: tf.Operation) -> tuple[str, int] | None:
    """Returns the file and line of the user's code that created an operation, or None."""
    for frame in reversed(list(operation.traceback or ())):
        if _is_of_user(frame.filename):
            return frame.filename, frame.lineno
    return None


def frames_below_user(operation: tf.Operation) -> list[str]:
    """Returns the library files between the creation of an operation and the user's line, innermost first."""
    files = [frame.filename for frame in reversed(list(operation.traceback or ()))]
    return list(itertools.takewhile(lambda filename: not _is_of_user(filename), files))


def _is_of_user(filename: str) -> bool:
    # AutoGraph also translates functions of this package. Such code is not the user's.
    return not filename.startswith(_libraries()) and _GENERATED not in filename


@functools.cache
def _libraries() -> tuple[str, ...]:
    # TensorFlow generates the wrappers of loaded operations from strings.
    names = ("tensorflow", "keras", "tf_keras", "optree", "tensorboard", "tensorflow_ipu")
    specs = (importlib.util.find_spec(name) for name in names)  # Some packages are loaded later, or not installed.
    folders = [f"{Path(spec.origin).parent}/" for spec in specs if spec is not None and spec.origin]
    return ("<string>", contextlib.__file__, *folders)


def stack_level() -> int:
    """Returns the `stacklevel` that makes a warning of the calling function name the user's line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and not _is_of_user(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return level


def hlo(
    program: functions.ConcreteFunction, inputs: Sequence[tf.Tensor], device: str, stage: str = "hlo_serialized"
) -> bytes:
    """Returns the program's HLO before any optimization; as text if `stage` is `"hlo"`."""
    with tf.device(device):
        return functions.hlo_of(program, inputs, device, stage)


def user_lines(program: functions.ConcreteFunction | tf.Graph) -> dict[str, str]:
    """Returns the innermost line of the user's code for each operation of a program."""
    lines_by_name: dict[str, str] = {}
    lines: dict[
        int, str | None
    ] = {}  # By the `id` of the operation, because a function may be called from many places.
    graph: Any = getattr(program, "graph", program)
    for name, operation in named_operations(graph):
        if id(operation) not in lines:
            frame = user_frame(operation)
            lines[id(operation)] = None if frame is None else f"{os.path.basename(frame[0])}:{frame[1]}"
        line = lines[id(operation)]
        if line is not None:
            lines_by_name[name] = line
    return lines_by_name
