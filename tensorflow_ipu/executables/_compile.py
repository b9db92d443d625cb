"""Compiles programs before they run, and keeps executables on disk."""

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
        if executable_cache.folder() is not None:
            prepared.program.compile()
        else:
            executable_cache.hold(*prepared.program.compile(executable_cache.machine_key()))
    return prepared


def current_strategy() -> IPUStrategyV1:
    """Returns the IPU strategy whose scope is around, or one for `/device:IPU:0`."""
    around = tf.distribute.get_strategy()
    return around if isinstance(around, IPUStrategyV1) else IPUStrategy()


DEFAULT_MAX_BYTES = executable_cache.DEFAULT_MAX_BYTES


def set_cache(folder: str | os.PathLike[str] | None, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
    """Keeps compiled programs in a folder from now on, and looks for them there before it compiles.

    Processes can share a folder. It replaces those of `IPUConfig.serialization_output_folder` and of
    `TF_POPLAR_FLAGS=--executable_cache_path=...`. Executables of other users than root are loaded only if
    `TENSORFLOW_IPU_TRUST_EXECUTABLES=1` is set, as they are machine code that runs in this process.

    Args:
      folder: The folder, which is created if it does not exist; None to keep nothing. From a folder that cannot be written,
        executables are only loaded.
      max_bytes: How large all its files may become together, in bytes: those used least recently are removed.

    Raises:
      TypeError: `max_bytes` is no whole number.
      ValueError: It is not positive, or the folder cannot be created or read.
    """
    executable_cache.ask(folder, max_bytes)


def cache_folder() -> str | None:
    """Returns the folder in which compiled programs are kept; None where they are not."""
    return executable_cache.folder()
