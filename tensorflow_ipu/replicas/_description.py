"""What a program says of itself before it runs: its HLO, and the user's line behind each of its operations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from tensorflow_ipu.replicas import _shards
from tensorflow_ipu.replicas._user_code import user_frame


def hlo(program: Any, inputs: Sequence[Any], device: str) -> bytes:
    """The program as XLA gets it, before any optimisation; nothing is run.

    Args:
      program: The concrete function.
      inputs: Its flat inputs, without those that it captured.
      device: The full name of the IPU device.

    Returns:
      A serialized `HloModuleProto`.

    Raises:
      tf.errors.OpError: The program cannot be compiled.
    """
    # What `experimental_get_compiler_ir` calls; that one takes a `tf.function`, which it would trace without the replica.
    with tf.device(device):
        running: Any = context.context()
        return running.get_compiler_ir(
            device_name=device,
            platform_name=None,
            function_name=program.name,
            flat_args=list(inputs),
            captured_inputs=program.captured_inputs,
            stage="hlo_serialized",
        )


def user_lines(program: Any) -> dict[str, str]:
    """The innermost line of the user's code behind each operation of a program.

    Args:
      program: The concrete function.

    Returns:
      For the name of each operation, in all functions that the program calls: `file.py:21`.
    """
    found: dict[str, str] = {}
    for graph in _shards.graphs_of(program):
        for operation in graph.get_operations():
            frame = user_frame(operation)
            if frame is not None:
                found[operation.name] = f"{os.path.basename(frame[0])}:{frame[1]}"
    return found
