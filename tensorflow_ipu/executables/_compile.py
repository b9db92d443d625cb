"""Functions that compile programs before they run, and that configure the executable cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from tensorflow_ipu._base.types import Nested
from tensorflow_ipu._native import executable_cache
from tensorflow_ipu.strategy import IPUStrategy, IPUStrategyV1
from tensorflow_ipu.strategy.ipu_strategy import PreparedProgram


def compile(  # noqa: A001
    program: Callable[..., Nested], args: Sequence[Nested] = (), kwargs: Mapping[str, Nested] | None = None
) -> PreparedProgram:
    """Compiles a program for the strategy in whose scope it is called, or else for `/device:IPU:0`, without running it.

    If there is an executable cache (`executables.set_cache`), other processes can load the executable from it.

    Args:
      program: A function as for `fn` of `IPUStrategy.run`, with the same `TypeError` and `ValueError`.
      args: The arguments of later runs. Only the types and shapes of tensors and queues matter.
      kwargs: The keyword arguments of later runs.

    Returns:
      The program with these arguments: `run()` runs it.

    Raises:
      RuntimeError: A graph is being built, so nothing can be compiled.
      tf.errors.InvalidArgumentError: XLA cannot compile the program. The message names the operation and a remedy.
    """
    strategy = current_strategy()
    prepared = strategy.prepare(program, args, kwargs)
    with tf.device(strategy.extended.ipu_device):
        if executable_cache.folder() is not None:
            prepared.program.compile()
        else:
            executable_cache.hold(*prepared.program.compile(executable_cache.machine_key()))
    return prepared


def current_strategy() -> IPUStrategyV1:
    """Returns the IPU strategy of the current scope, or a new one for `/device:IPU:0`."""
    strategy = tf.distribute.get_strategy()
    return strategy if isinstance(strategy, IPUStrategyV1) else IPUStrategy()


DEFAULT_MAX_BYTES = executable_cache.DEFAULT_MAX_BYTES


def set_cache(folder: str | os.PathLike[str] | None, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
    """Sets the folder in which compiled programs are stored, and from which they are loaded instead of compiled again.

    Processes can share a folder. It takes precedence over `IPUConfig.serialization_output_folder` and over
    `TF_POPLAR_FLAGS=--executable_cache_path=...`. Executables are machine code that runs in this process. So
    executables of other users than root are loaded only if `TENSORFLOW_IPU_TRUST_EXECUTABLES=1` is set.

    Args:
      folder: The folder, which is created if it does not exist. None disables the cache. If the folder is not writable,
        executables are loaded from it but not stored.
      max_bytes: The maximum size of all files together, in bytes. The least recently used files are removed.

    Raises:
      TypeError: `max_bytes` is no whole number.
      ValueError: `max_bytes` is not positive, or the folder cannot be created or read.
    """
    executable_cache.ask(folder, max_bytes)


def cache_folder() -> str | None:
    """Returns the folder in which compiled programs are stored, or None if there is no cache."""
    return executable_cache.folder()
