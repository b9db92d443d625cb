"""Runs a program on all replicas that its device has room for."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops import control_flow_util, resource_variable_ops

from tensorflow_ipu._library import ops
from tensorflow_ipu.config import _state
from tensorflow_ipu.replicas._shards import power_of_2, shards_of

# A program: the IPUs of one replica, once it has run.
_shards: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def ipus_or_one(ordinal: int) -> int:
    """How many IPUs a device has; 1 where it does not exist, which the run will say in words."""
    ipus = _state.ipus()
    return ipus[ordinal] if ordinal < len(ipus) else 1


def expect(ipus: int, why_not: str = "") -> Any:
    """An operation for a graph that holds a program: it fails where the device has another number of IPUs by then.

    Args:
      ipus: How many IPUs the device has now.
      why_not: Why the program cannot run, where it cannot: then the operation fails with these words.
    """
    if _is_part_of_a_program():
        return tf.no_op()  # Compiled along with a program around, which has been checked.
    return ops.ipu_expect_ipus(ipus=ipus, why_not=why_not)


def wanted(program: Any, ordinal: int) -> bool:
    """Whether a program on this device is to run on replicas.

    A device of one IPU runs a program of one IPU by itself. So does what is traced as a part of a program around it.
    """
    if ipus_or_one(ordinal) == 1 and ipus_of_replica(program) == 1:
        return False
    return tf.executing_eagerly() or not _is_part_of_a_program()


def _is_part_of_a_program() -> bool:
    """Whether the graph being built will be compiled, along with all that is put into it."""
    return control_flow_util.GraphOrParentsInXlaContext(framework_ops.get_default_graph())


def ipus_of_replica(program: Any) -> int:
    """How many IPUs one replica of the program uses: the next power of two of its pipeline stages' or shards' IPUs."""
    shards = _shards.get(program)
    if shards is None:
        shards = _shards[program] = power_of_2(shards_of(program))
    return shards


def call(program: Any, inputs: Sequence[Any], captured: Sequence[Any]) -> Any:
    """Runs the program on all replicas at once, or puts that into the graph.

    Replicas have their own lanes in feeds, and their own copies of variables; other inputs are the same for all.

    Returns:
      What replica 0 returned.

    Raises:
      tf.errors.InternalError: The IPUs of a replica do not divide those of the device.
      tf.errors.OpError: The program failed on a replica, the first of which gives the error.
    """
    graph = framework_ops.get_default_graph()
    if hasattr(graph, "watch_variable"):
        for variable in program.graph.variables:  # They have to live as long as the function around.
            resource_variable_ops.variable_accessed(variable)
    results = ops.ipu_replicated_run(
        [*inputs, *captured],
        Tout=[output.dtype for output in program.outputs],
        f=program,
        shards=ipus_of_replica(program),
    )
    if not tf.executing_eagerly():
        if isinstance(results, framework_ops.Operation):  # A program without results.
            results = []
        for result, output in zip(results, program.outputs, strict=True):
            result.set_shape(output.shape)
    return program.function_type.pack_output(list(results or ()))


@tf.RegisterGradient("IpuReplicatedRun")
def _refuse(op: Any, *gradients: Any) -> None:
    """What a tape around a run asks for."""
    del op, gradients
    raise NotImplementedError(
        "there is no gradient through a run on replicas, whose inputs and results are replica 0's: take the gradient"
        " inside of the program, where `tf.GradientTape` and optimizers see all replicas"
    )
