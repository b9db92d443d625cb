"""Keeping compiled programs on disk, as users switch it on."""

from __future__ import annotations

import os

from tensorflow_ipu import _executable_cache

DEFAULT_MAX_BYTES = _executable_cache.DEFAULT_MAX_BYTES


def set_cache(folder: str | os.PathLike[str] | None, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
    """Keeps compiled programs in a folder from now on, and looks for them there before it compiles.

    Any number of processes can share a folder. An executable is found where the program is the same, with the same
    versions of TensorFlow and of this package's kernels, on the same kind of processor. It takes the place of what
    `IPUConfig.serialization_output_folder` and `TF_POPLAR_FLAGS=--executable_cache_path=...` say.

    Args:
      folder: The folder, which is made where there is none; None to keep nothing.
      max_bytes: How large all its files may become together, in bytes: those used least recently are removed.

    Raises:
      TypeError: `max_bytes` is no whole number.
      ValueError: It is not positive, or the folder cannot be written.
    """
    _executable_cache.ask(folder, max_bytes)


def cache_folder() -> str | None:
    """The folder in which compiled programs are kept; None where they are not."""
    return _executable_cache.folder()
