"""The user's code: the lines that made a program's operations, its HLO, and tracebacks that end in it."""

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

_GENERATED = "__autograph_generated_file"  # What AutoGraph made of the user's code.
_OTHERS = (str(Path(__file__).parents[1]), str(Path(tf.__file__).parent), contextlib.__file__)


def _shows_all() -> bool:
    return environment.full_tracebacks() or not tf.debugging.is_traceback_filtering_enabled()


def user_lines_alone(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Makes tracebacks that end in a public function show the user's lines alone, as Keras does, unless all are to stay."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except Exception as exc:
            raise _of_user(exc)  # noqa: B904  (It is the same.)

    return call


def _of_user(error: Exception) -> Exception:
    if _shows_all():
        return error
    if not tf.executing_eagerly():  # AutoGraph has yet to find the user's lines by what it made of them.
        return _filtered(error, lambda filename: filename.startswith(_OTHERS))
    chained: BaseException | None = error
    while chained is not None:
        cause = chained.__cause__ or (None if chained.__suppress_context__ else chained.__context__)
        if cause is not None and not _filtered(cause, lambda filename: not _is_of_user(filename)).__traceback__:
            chained.__cause__ = cause = None  # What it was before it was explained. This hides its context, too.
        chained = cause
    return _filtered(error, lambda filename: not _is_of_user(filename))


def shortened(error: Exception) -> Exception:
    """Takes the frames of the package and TensorFlow out of a traceback, unless all are to stay."""
    if _shows_all():
        return error
    return _filtered(error, lambda filename: filename.startswith(_OTHERS) or _GENERATED in filename)


def blamed_on_call(error: Exception) -> Exception:
    """The same, where a function of the package is left; AutoGraph names its call alone if it found the fault."""
    if _shows_all():
        return error
    # What AutoGraph made of the user's code stays for now: it has yet to find the user's lines by it.
    marked: Any = _filtered(error, lambda filename: filename.startswith(_OTHERS))
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
    kept = None
    for frame in reversed(frames):
        kept = types.TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return error.with_traceback(kept)


def _file_of(frame: types.FrameType) -> str:
    # Code that is made at run time, such as the `__init__` of a dataclass, belongs to the module that it is made for.
    name = frame.f_code.co_filename
    return frame.f_globals.get("__file__", name) if name == "<string>" else name


def user_frame(operation: tf.Operation) -> tuple[str, int] | None:
    """Returns the innermost frame of an operation's making in the user's code."""
    for frame in reversed(list(operation.traceback or ())):
        if _is_of_user(frame.filename):
            return frame.filename, frame.lineno
    return None


def frames_below_user(operation: tf.Operation) -> list[str]:
    """Returns the files of libraries that the user's innermost line called to make an operation."""
    files = [frame.filename for frame in reversed(list(operation.traceback or ()))]
    return list(itertools.takewhile(lambda filename: not _is_of_user(filename), files))


def _is_of_user(filename: str) -> bool:
    # What AutoGraph made of a function that this package passes has no lines of the user's: its caller has.
    return not filename.startswith(_libraries()) and _GENERATED not in filename


@functools.cache
def _libraries() -> tuple[str, ...]:
    # TensorFlow makes the wrappers of loaded operations from strings.
    names = ("tensorflow", "keras", "tf_keras", "optree", "tensorboard", "tensorflow_ipu")
    found = (importlib.util.find_spec(name) for name in names)  # Some are loaded later, or not at all.
    folders = [f"{Path(spec.origin).parent}/" for spec in found if spec is not None and spec.origin]
    return ("<string>", contextlib.__file__, *folders)


def stack_level() -> int:
    """Returns the `stacklevel` by which the caller of this warns of the user's line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and not _is_of_user(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return level


def hlo(
    program: functions.ConcreteFunction, inputs: Sequence[tf.Tensor], device: str, stage: str = "hlo_serialized"
) -> bytes:
    """Returns the program as XLA gets it, before any optimisation; `stage` `"hlo"` is text."""
    with tf.device(device):
        return functions.hlo_of(program, inputs, device, stage)


def user_lines(program: functions.ConcreteFunction | tf.Graph) -> dict[str, str]:
    """Returns the innermost line of the user's code for each operation of a program."""
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
