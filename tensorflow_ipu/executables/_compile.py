"""Compiles programs before they run, and keeps executables on disk."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from tensorflow_ipu import replicas
from tensorflow_ipu._base.types import Nested
from tensorflow_ipu._native.library import native
from tensorflow_ipu.replicas import executable_cache
from tensorflow_ipu.strategy import IPUStrategy, IPUStrategyV1
from tensorflow_ipu.strategy.scope import PreparedProgram

# The folder of executables of this process alone; made when the first is.
_own_folder: list[str] = []


def compile(  # noqa: A001
    program: Callable[..., Nested], args: Sequence[Nested] = (), kwargs: Mapping[str, Nested] | None = None
) -> PreparedProgram:
    """Compiles a program for the strategy whose scope is around, or else for `/device:IPU:0`, without running it.

    Where executables are kept (`executables.set_cache`), other processes find this one.

    Args:
      program: As `fn` of `IPUStrategy.run`, whose `TypeError` and `ValueError` are raised here too.
      args: The arguments of later runs; of tensors and queues, types and shapes alone matter.
      kwargs: Keyword arguments, likewise.

    Returns:
      The program with these arguments: `run()` runs it.

    Raises:
      RuntimeError: A graph is being built, where nothing is compiled.
      tf.errors.InvalidArgumentError: XLA cannot compile the program; the message says what, and a remedy.
    """
    strategy = current_strategy()
    prepared = strategy.prepare(program, args, kwargs)
    with tf.device(strategy.extended.ipu_device):
        own = () if executable_cache.folder() is not None else (_folder(), executable_cache.key())
        replicas.compile_only(prepared._prepared, *own)
    return prepared


def current_strategy() -> IPUStrategyV1:
    """The IPU strategy whose scope is around, or one for `/device:IPU:0`."""
    around = tf.distribute.get_strategy()
    return around if isinstance(around, IPUStrategyV1) else IPUStrategy()


def _folder() -> str:
    if not _own_folder:
        folder = tempfile.mkdtemp(prefix="ipu_executables_")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        native.ipu_add_executables(folder.encode(), executable_cache.key().encode())
        _own_folder.append(folder)
    return _own_folder[0]


DEFAULT_MAX_BYTES = executable_cache.DEFAULT_MAX_BYTES


def set_cache(folder: str | os.PathLike[str] | None, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
    """Keeps compiled programs in a folder from now on, and looks for them there before it compiles.

    Processes can share a folder. It replaces those of `IPUConfig.serialization_output_folder` and of
    `TF_POPLAR_FLAGS=--executable_cache_path=...`.

    Args:
      folder: The folder, which is made where there is none; None to keep nothing.
      max_bytes: How large all its files may become together, in bytes: those used least recently are removed.

    Raises:
      TypeError: `max_bytes` is no whole number.
      ValueError: It is not positive, or the folder cannot be written.
    """
    executable_cache.ask(folder, max_bytes)


def cache_folder() -> str | None:
    """The folder in which compiled programs are kept; None where they are not."""
    return executable_cache.folder()
