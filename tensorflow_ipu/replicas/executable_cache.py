"""The executable cache on disk, and what executables depend on besides their programs."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import platform
from pathlib import Path

import tensorflow as tf

from tensorflow_ipu._base import environment
from tensorflow_ipu._base.checks import is_int
from tensorflow_ipu._native.library import BUILD_INFO, native
from tensorflow_ipu.config import _state

_logger = logging.getLogger(__name__)

DEFAULT_MAX_BYTES = 2 << 30

# What a call asked for: a folder and its size, or None for no cache. Absent, the configuration or a variable says.
_asked: dict[str, tuple[str, int] | None] = {}
# The folder that the kernels use now.
_current: list[str] = [""]


def ask(folder: str | os.PathLike[str] | None, max_bytes: int) -> None:
    """Uses a folder, or none, whatever the configuration and the environment say."""
    if not is_int(max_bytes):
        raise TypeError(f"`max_bytes` must be a whole number of bytes, but is {max_bytes!r}")
    if max_bytes <= 0:
        raise ValueError(f"`max_bytes` must be positive, but is {max_bytes}; `set_cache(None)` keeps nothing")
    _asked["asked"] = None if folder is None else (_made(os.fspath(folder), "folder"), max_bytes)
    refresh()


def refresh() -> None:
    """Has the kernels use the folder of `ask`, else of the configuration, else of the environment."""
    folder, max_bytes = _wanted()
    if folder == _current[0] and not folder:
        return
    native.ipu_set_executable_cache(folder.encode(), max_bytes, key().encode() if folder else b"")
    if folder != _current[0]:
        _logger.info("executables are kept in `%s`", folder) if folder else _logger.info("executables are not kept")
    _current[0] = folder


def folder() -> str | None:
    """The folder in use; None where executables are not kept."""
    return _current[0] or None


@functools.lru_cache(maxsize=1)
def key() -> str:
    """What an executable depends on besides its program: versions, the processor, what XLA is told."""
    kernels = json.loads(BUILD_INFO.read_text())["sha256"]
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = [tf.__version__, kernels, os.environ.get("XLA_FLAGS", ""), platform.machine(), str(processors)]
    return hashlib.sha256("\n".join([*parts, *_processor()]).encode()).hexdigest()


def _processor() -> list[str]:
    """What tells this processor from others, for which its machine code may not run."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0].splitlines()
    except OSError:
        return [platform.processor()]
    return [line for line in lines if line.startswith(("model name", "flags", "Features"))]


def _wanted() -> tuple[str, int]:
    if "asked" in _asked:
        asked = _asked["asked"]
        return ("", DEFAULT_MAX_BYTES) if asked is None else asked
    for record in _state.records():
        folder = record.options["serialization_output_folder"]
        if folder:
            return _made(folder, "IPUConfig.serialization_output_folder"), DEFAULT_MAX_BYTES
    folder = environment.poplar_flags().executable_cache_path
    return (_made(folder, f"--executable_cache_path` in `{environment.FLAGS_VARIABLE}") if folder else ""), (
        DEFAULT_MAX_BYTES
    )


def _made(folder: str, name: str) -> str:
    path = os.path.abspath(os.path.expanduser(folder))
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as exc:
        raise ValueError(f"`{name}` is `{folder}`, and cannot be made: {exc.strerror}; name another folder") from exc
    if not os.access(path, os.W_OK | os.X_OK):
        raise ValueError(f"`{name}` is `{folder}`, which nobody may write to; name another folder")
    return path


_state.add_record_listener(refresh)
