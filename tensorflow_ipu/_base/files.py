"""Writes files either completely or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Opens a new file for writing that replaces the file at `path` at the end of the block.

    If the block fails, the file at `path` does not change. If several processes write it, the last one to end wins. As
    with `open`, links are followed, an existing file keeps its permissions, and `path` may be a pipe, a device or
    `/dev/stdout`.

    Raises:
      OSError: The file cannot be written.
    """
    if not _is_replaceable(path):
        with open(path, "wb") as file:
            yield file
        return
    target = os.path.realpath(path)
    about = os.stat(target) if os.path.exists(target) else None
    unfinished = os.path.join(os.path.dirname(target), f".ipu_{os.urandom(8).hex()}.unfinished")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(unfinished, flags, 0o666 if about is None else 0o600), "wb") as file:
            yield file
            if about is not None:
                with contextlib.suppress(OSError):  # Only root may change the owner of a file.
                    os.fchown(file.fileno(), about.st_uid, about.st_gid)
                os.fchmod(file.fileno(), about.st_mode & 0o777)
        _move(unfinished, target)
    except BaseException as exc:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        if isinstance(exc, OSError) and exc.errno and exc.filename in (None, unfinished):
            raise OSError(exc.errno, exc.strerror, os.fspath(path)) from exc
        raise


def write(path: str | os.PathLike[str], contents: str | bytes) -> None:
    """Writes `contents` to a file as `replacing` does; text is encoded as UTF-8."""
    with replacing(path) as file:
        file.write(contents.encode() if isinstance(contents, str) else contents)


def _is_replaceable(path: str | os.PathLike[str]) -> bool:
    try:
        about = os.stat(path)
    except FileNotFoundError:
        return True
    folder, name = os.path.split(os.fspath(path))
    # `/dev/stdout` may lead to a regular file that this process has open. It must not be replaced.
    is_open = os.path.join(os.path.realpath(folder), name).startswith(("/dev/std", "/proc/"))
    writable = os.access(path, os.W_OK) and os.access(os.path.dirname(os.path.realpath(path)), os.W_OK)
    return stat.S_ISREG(about.st_mode) and writable and not is_open


def _move(unfinished: str, target: str) -> None:
    try:
        os.replace(unfinished, target)
    except OSError as exc:
        if exc.errno != errno.EBUSY:
            raise
        shutil.copyfile(unfinished, target)  # A file that is itself a mount point of a container cannot be replaced.
        os.unlink(unfinished)
