"""What a program says of itself before it runs: its HLO, and the user's line behind each of its operations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tensorflow_ipu._tensorflow import functions
from tensorflow_ipu.replicas._called_functions import named_operations
from tensorflow_ipu.replicas._user_code import user_frame


def hlo(program: functions.ConcreteFunction, inputs: Sequence[tf.Tensor], device: str) -> bytes:
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
    with tf.device(device):
        return functions.hlo_of(program, inputs, device)


def user_lines(program: functions.ConcreteFunction | tf.Graph) -> dict[str, str]:
    """The innermost line of the user's code behind each operation of a program.

    Args:
      program: The concrete function, or its graph.

    Returns:
      For the name of each operation, with the calls that lead to it, as the HLO has it: `file.py:21`.
    """
    found: dict[str, str] = {}
    lines: dict[int, str | None] = {}  # Of operations by their ids: a function may be called from many places.
    graph: Any = getattr(program, "graph", program)
    for name, operation in named_operations(graph):
        if id(operation) not in lines:
            frame = user_frame(operation)
            lines[id(operation)] = None if frame is None else f"{os.path.basename(frame[0])}:{frame[1]}"
        line = lines[id(operation)]
        if line is not None:
            found[name] = line
    return found
