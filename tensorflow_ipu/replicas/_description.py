"""What a program says of itself before it runs: its HLO, and the user's line behind each of its operations."""

from __future__ import annotations

import os
from collections.abc import Sequence

import tensorflow as tf

from tensorflow_ipu._tensorflow import functions, graphs
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
      For the name of each operation, in all functions that the program calls: `file.py:21`.
    """
    found: dict[str, str] = {}
    for graph in graphs.graphs_of(program):
        for operation in graph.get_operations():
            frame = user_frame(operation)
            if frame is not None:
                found[operation.name] = f"{os.path.basename(frame[0])}:{frame[1]}"
    return found
