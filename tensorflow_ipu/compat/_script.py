"""Runs a script as `python script.py` would, with the old names in place."""

from __future__ import annotations

import builtins
import io
import os
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType

from tensorflow_ipu._tensorflow.patches import Changes
from tensorflow_ipu.compat import _modules, _names
from tensorflow_ipu.compat._table import resolve

_lock = threading.Lock()
_finder = _modules.OldModuleFinder()
_changes = Changes()


def install() -> None:
    """Makes the names of IPU TensorFlow importable: `from tensorflow.python import ipu` and so on.

    It also gives TensorFlow and Keras 3 back the names and arguments that such scripts use and that were lost since:
    docs/porting.md lists them. A second call does nothing. Thread-safe.
    """
    with _lock:
        if _finder in sys.meta_path:
            return
        sys.meta_path.insert(0, _finder)
        try:
            for module, name, target in _names.ATTRIBUTES:
                _changes.add(module, name, resolve(target))

            from tensorflow_ipu.compat import _keras

            _keras.bridge_tensorflow(_changes)
            _keras.bridge(_changes)
        except BaseException:
            _close()
            raise


def uninstall() -> None:
    """Takes back what `install` did; where it did nothing, neither does this.

    Modules and names that a script has imported stay in its hands. Thread-safe.
    """
    with _lock:
        if _finder in sys.meta_path:
            _close()


def _close() -> None:
    _changes.undo()
    _modules.remove_all()
    sys.meta_path.remove(_finder)


# What a shell reports of a process that Ctrl-C ended.
_INTERRUPTED = 130


def run(script: Path, arguments: Sequence[str]) -> int:
    """Runs a script as the main module of this process, which is given over to it."""
    install()
    sys.argv = [str(script), *arguments]
    if not getattr(sys.flags, "safe_path", False):  # As of Python 3.11.
        sys.path[0] = str(script.resolve().parent)
    # Python, too, gives the main module a full path, and leaves `sys.argv` as it was written.
    path = os.path.abspath(script)
    main = ModuleType("__main__")
    main.__dict__.update(
        __file__=path, __loader__=SourceFileLoader("__main__", path), __builtins__=builtins, __cached__=None
    )
    sys.modules["__main__"] = main
    try:
        with io.open_code(path) as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        _execute(code, main)
    except SystemExit:
        raise
    except BaseException as exc:
        # The frames of this file are of no interest to the script's author.
        below = exc.with_traceback(_below_this_file(exc.__traceback__))
        sys.excepthook(type(below), below, below.__traceback__)
        return _INTERRUPTED if isinstance(exc, KeyboardInterrupt) else 1
    return 0


def _execute(code: CodeType, main: ModuleType) -> None:
    exec(code, main.__dict__)


def _below_this_file(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    return traceback
