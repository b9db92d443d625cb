"""The executable cache on disk, and what executables depend on besides their programs."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import platform
import stat
import threading
from pathlib import Path

import tensorflow as tf

from tensorflow_ipu._base import environment
from tensorflow_ipu._base.checks import is_int
from tensorflow_ipu._native.library import BUILD_INFO, native

_logger = logging.getLogger(__name__)

DEFAULT_MAX_BYTES = 2 << 30

# What a call asked for: a folder and its size, or None for no cache. Absent, the configuration or a variable says.
_asked: dict[str, tuple[str, int] | None] = {}
# The folder of the configuration, or "".
_configured: list[str] = [""]
# The folder that the kernels use now.
_current: list[str] = [""]
# Guards the above: several threads may ask for a folder, and the configuration is another thread's.
_lock = threading.RLock()
# Folders of which a warning has said that others may write there.
_warned: set[str] = set()


def ask(folder: str | os.PathLike[str] | None, max_bytes: int) -> None:
    """Uses a folder, or none, whatever the configuration and the environment say."""
    if not is_int(max_bytes):
        raise TypeError(f"`max_bytes` must be a whole number of bytes, but is {max_bytes!r}")
    if max_bytes <= 0:
        raise ValueError(f"`max_bytes` must be positive, but is {max_bytes}; `set_cache(None)` keeps nothing")
    wanted = None if folder is None else (_made(os.fspath(folder), "folder"), max_bytes)
    with _lock:
        _asked["asked"] = wanted
        refresh()


def configure(folder: str) -> None:
    """Uses the folder of the configuration, or without one that of the environment, unless a call has asked for another."""
    with _lock:
        _configured[0] = folder
        refresh()


def refresh() -> None:
    """Has the kernels use the folder of `ask`, else of the configuration, else of the environment."""
    with _lock:
        folder, max_bytes = _wanted()
        if folder == _current[0] and not folder:
            return
        trusting = environment.trusts_executables()
        of_folder = ""
        if folder:
            of_folder = key() if trusting or _is_private(folder) else f"{key()} of {os.geteuid()}"
        native.ipu_set_executable_cache(os.fsencode(folder), max_bytes, of_folder.encode(), trusting)
        if folder != _current[0]:
            _log(folder)
        _current[0] = folder


def _log(folder: str) -> None:
    if folder:
        only_read = "" if os.access(folder, os.W_OK) else ", which cannot be written: they are only loaded"
        _logger.info("executables are kept in `%s`%s", folder, only_read)
    else:
        _logger.info("executables are not kept")


def folder() -> str | None:
    """Returns the folder in use; None if executables are not kept."""
    return _current[0] or None


@functools.lru_cache(maxsize=1)
def key() -> str:
    """Returns a fingerprint of what an executable depends on besides its program: `machine_key`, and what XLA is told."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return _fingerprint([machine_key(), os.environ.get("XLA_FLAGS", ""), str(processors)])


@functools.lru_cache(maxsize=1)
def machine_key() -> str:
    """Returns a fingerprint of versions and processor. Machine code compiled for one fingerprint may fail on another."""
    kernels = json.loads(BUILD_INFO.read_text())["sha256"]
    return _fingerprint([tf.__version__, kernels, platform.machine(), *_processor()])


def _fingerprint(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def hold(name: str, executable: bytes) -> None:
    """Keeps an executable of `machine_key` in memory: this process loads it until `release` is called as often."""
    native.ipu_hold_executable(machine_key().encode(), name.encode(), executable, len(executable))


def release(name: str) -> None:
    native.ipu_release_executable(name.encode())


def _processor() -> list[str]:
    """Returns the lines of the system that name the processor and its instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0].splitlines()
    except OSError:
        return [platform.processor()]
    return [line for line in lines if line.startswith(("model name", "flags", "Features"))]


def _wanted() -> tuple[str, int]:
    if "asked" in _asked:
        asked = _asked["asked"]
        return ("", DEFAULT_MAX_BYTES) if asked is None else asked
    if _configured[0]:
        return _made(_configured[0], "IPUConfig.serialization_output_folder"), DEFAULT_MAX_BYTES
    folder = environment.poplar_flags().executable_cache_path
    return (_made(folder, f"--executable_cache_path` in `{environment.FLAGS_VARIABLE}") if folder else ""), (
        DEFAULT_MAX_BYTES
    )


def _made(folder: str, name: str) -> str:
    path = os.path.abspath(os.path.expanduser(folder))
    try:
        os.makedirs(path, 0o755, exist_ok=True)
    except OSError as exc:
        raise ValueError(f"`{name}` is `{folder}`, and cannot be made: {exc.strerror}; name another folder") from exc
    if not os.access(path, os.R_OK | os.X_OK):
        raise ValueError(f"`{name}` is `{folder}`, which this process may not read; name another folder")
    return path


def _is_private(folder: str) -> bool:
    """Returns False if other users than root may add files to a folder; warns once if they may exchange files too.

    The kernels load no file of another user. So that users do not replace each other's files, names differ by user then.
    """
    about = os.stat(folder)
    # Most systems give each user a group of the same number, whose only member is the user.
    others = stat.S_IWOTH | (stat.S_IWGRP if about.st_gid != about.st_uid else 0)
    owned = about.st_uid in (0, os.geteuid())
    if owned and not about.st_mode & others:
        return True
    if not (owned and about.st_mode & stat.S_ISVTX) and folder not in _warned:
        _warned.add(folder)
        _logger.warning(
            "`%s`, where executables are kept, %s (owner %d, group %d, mode %o). Executables are machine code that runs in"
            " this process, so those of other users than root are not loaded. Name a folder that you alone may write to,"
            " or set `%s=1` if you trust all who may write there.",
            folder,
            "may be written to by others" if owned else "belongs to another user",
            about.st_uid,
            about.st_gid,
            stat.S_IMODE(about.st_mode),
            environment.TRUST_VARIABLE,
        )
    return False
