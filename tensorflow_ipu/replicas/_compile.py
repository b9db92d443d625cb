"""Compiles a program without running it."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from tensorflow_ipu._library import ops
from tensorflow_ipu._tensorflow import op_errors
from tensorflow_ipu.replicas import _uncompilable

if TYPE_CHECKING:
    from tensorflow_ipu._tensorflow.functions import ConcreteFunction
    from tensorflow_ipu.replicas._program import Prepared

import tensorflow as tf

_compiled: weakref.WeakSet[ConcreteFunction] = weakref.WeakSet()


def compile_only(prepared: Prepared, folder: str = "", key: str = "") -> None:
    """Compiles a program; its executable goes where those of the process are kept. The caller has entered the device.

    Args:
      prepared: The program and its flat inputs, whose values do not matter.
      folder: Where to keep the executable instead.
      key: What it depends on besides the program, with a folder.

    Raises:
      tf.errors.InvalidArgumentError: XLA cannot compile the program: the message says what of it, and the way out.
    """
    program, inputs = prepared
    try:
        ops.ipu_compile([*inputs, *program.captured_inputs], f=program, folder=folder, key=key)
    except tf.errors.InvalidArgumentError as exc:
        reason = _uncompilable.why(program, exc.message)
        if reason is None:
            raise op_errors.told_plainly(exc) from None
        raise tf.errors.InvalidArgumentError(None, None, reason) from exc


def compile_once(prepared: Prepared) -> None:
    """Compiles a program where this process has not done so before."""
    if prepared[0] not in _compiled:
        compile_only(prepared)
        _compiled.add(prepared[0])
