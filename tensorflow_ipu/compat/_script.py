"""Runs a script as `python script.py` would, with the old names in place."""

from __future__ import annotations

import builtins
import io
import os
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType

from tensorflow_ipu.compat._install import install

# What a shell reports of a process that Ctrl-C ended.
_INTERRUPTED = 130


def run(script: Path, arguments: Sequence[str]) -> int:
    """Runs a script as the main module of this process, which is given over to it.

    Args:
      script: The file.
      arguments: What the script finds in `sys.argv` behind its own name.

    Returns:
      The exit status for the process: 0, or 1 where the script ended with an exception, whose traceback was printed.

    Raises:
      SystemExit: The script ended itself so.
    """
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
