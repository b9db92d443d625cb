"""Selects the folder of the executable cache, and computes the keys that executables depend on.

A folder set by `ask` has priority over the folder of the configuration, and that over `TF_POPLAR_FLAGS`.
"""

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

# The argument of `ask`, if it was called: a folder and its maximum size in bytes, or None for no cache.
_asked: dict[str, tuple[str, int] | None] = {}
# The folder that the configuration selects, or "".
_configured: list[str] = [""]
# The folder that the kernels use now.
_current: list[str] = [""]
# Guards the variables above: several threads may select folders.
_lock = threading.RLock()
# Folders for which the warning of `_is_private` was logged.
_warned: set[str] = set()


def ask(folder: str | os.PathLike[str] | None, max_bytes: int) -> None:
    """Selects a cache folder, or None for no cache, in place of the configuration's or the environment's."""
    if not is_int(max_bytes):
        raise TypeError(f"`max_bytes` must be a whole number of bytes, but is {max_bytes!r}")
    if max_bytes <= 0:
        raise ValueError(f"`max_bytes` must be positive, but is {max_bytes}; `set_cache(None)` keeps nothing")
    selection = None if folder is None else (_create_folder(os.fspath(folder), "folder"), max_bytes)
    with _lock:
        _asked["asked"] = selection
        refresh()


def configure(folder: str) -> None:
    """Sets the folder of the configuration (`""` for none)."""
    with _lock:
        _configured[0] = folder
        refresh()


def refresh() -> None:
    """Passes the selected folder to the kernels."""
    with _lock:
        folder, max_bytes = _selected()
        if folder == _current[0] and not folder:
            return
        trusting = environment.trusts_executables()
        file_key = ""
        if folder:
            file_key = key() if trusting or _is_private(folder) else f"{key()} of {os.geteuid()}"
        native.ipu_set_executable_cache(os.fsencode(folder), max_bytes, file_key.encode(), trusting)
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
    """Returns a fingerprint of what an executable depends on besides its program.

    These are `machine_key`, `XLA_FLAGS` and the number of processors.
    """
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return _fingerprint([machine_key(), os.environ.get("XLA_FLAGS", ""), str(processors)])


@functools.lru_cache(maxsize=1)
def machine_key() -> str:
    """Returns a fingerprint of the versions and the processor. Machine code for one fingerprint may fail on another."""
    kernels = json.loads(BUILD_INFO.read_text())["sha256"]
    return _fingerprint([tf.__version__, kernels, platform.machine(), *_processor()])


def _fingerprint(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def hold(name: str, executable: bytes) -> None:
    """Keeps an executable in memory, so that this process can load it. Each call needs one call of `release`."""
    native.ipu_hold_executable(machine_key().encode(), name.encode(), executable, len(executable))


def release(name: str) -> None:
    native.ipu_release_executable(name.encode())


def _processor() -> list[str]:
    """Returns the lines of `/proc/cpuinfo` that name the processor's model and instruction sets."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0].splitlines()
    except OSError:
        return [platform.processor()]
    return [line for line in lines if line.startswith(("model name", "flags", "Features"))]


def _selected() -> tuple[str, int]:
    if "asked" in _asked:
        selection = _asked["asked"]
        return ("", DEFAULT_MAX_BYTES) if selection is None else selection
    if _configured[0]:
        return _create_folder(_configured[0], "IPUConfig.serialization_output_folder"), DEFAULT_MAX_BYTES
    folder = environment.poplar_flags().executable_cache_path
    option = f"--executable_cache_path` in `{environment.FLAGS_VARIABLE}"
    return _create_folder(folder, option) if folder else "", DEFAULT_MAX_BYTES


def _create_folder(folder: str, name: str) -> str:
    path = os.path.abspath(os.path.expanduser(folder))
    try:
        os.makedirs(path, 0o755, exist_ok=True)
    except OSError as exc:
        raise ValueError(
            f"`{name}` is `{folder}`, which cannot be created: {exc.strerror}; name another folder"
        ) from exc
    if not os.access(path, os.R_OK | os.X_OK):
        raise ValueError(f"`{name}` is `{folder}`, which this process may not read; name another folder")
    return path


def _is_private(folder: str) -> bool:
    """Returns False if other users than root may add files to a folder. Warns, once, if they may also replace files.

    The kernels load no files of other users. In a shared folder, the names of files depend on the user, so that users
    do not replace each other's files. In a sticky folder such as `/tmp`, the system prevents it.
    """
    about = os.stat(folder)
    # On most systems, each user is the only member of a group that has the user's number.
    shared_bits = stat.S_IWOTH | (stat.S_IWGRP if about.st_gid != about.st_uid else 0)
    owned = about.st_uid in (0, os.geteuid())
    if owned and not about.st_mode & shared_bits:
        return True
    if not (owned and about.st_mode & stat.S_ISVTX) and folder not in _warned:
        _warned.add(folder)
        _logger.warning(
            "`%s`, where executables are kept, %s (owner %d, group %d, mode %o). Executables are machine code that runs"
            " in this process, so executables of other users than root are not loaded. Name a folder that only you may"
            " write to, or set `%s=1` if you trust all users who may write there.",
            folder,
            "may be written to by others" if owned else "belongs to another user",
            about.st_uid,
            about.st_gid,
            stat.S_IMODE(about.st_mode),
            environment.TRUST_VARIABLE,
        )
    return False
