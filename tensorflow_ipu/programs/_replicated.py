"""Runs a program on all replicas that its device has IPUs for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from tensorflow_ipu import hosts
from tensorflow_ipu._base import environment
from tensorflow_ipu._base.checks import check_bool, is_int
from tensorflow_ipu._base.types import Gradient, Nested
from tensorflow_ipu._native.library import ops
from tensorflow_ipu._tensorflow import functions, gradients, graphs
from tensorflow_ipu.config import _state
from tensorflow_ipu.programs import _floating_point
from tensorflow_ipu.programs._shards import power_of_2, shards_of

_TRUE = tf.compat.v1.AttrValue(b=True)
_SHARDS = "_ipu_shards"  # The attribute of a program that has the IPUs of one replica, once it has run.


def ipus_or_one(ordinal: int) -> int:
    """How many IPUs a device has; 1 where it does not exist, which the run will say in words."""
    ipus = _state.ipus()
    return ipus[ordinal] if ordinal < len(ipus) else 1


def wanted(program: functions.ConcreteFunction, ordinal: int, eager: bool) -> bool:
    """Whether a program on this device runs on replicas, or under their control."""
    # Eagerly, a device of one IPU runs a program of one IPU by itself, unless other workers run it too or its numbers may
    # stop it. A graph may run under another configuration, so there the run finds out how many replicas there are. What
    # is traced within a program runs as its part.
    if eager:
        if ipus_or_one(ordinal) > 1 or ipus_of_replica(program) > 1 or hosts.joined() is not None:
            return True
        return _floating_point.may_stop(program.graph)
    return not graphs.is_compiled(tf.compat.v1.get_default_graph())


def ipus_of_replica(program: functions.ConcreteFunction) -> int:
    """How many IPUs one replica uses: the next power of two of its pipeline stages' or shards' IPUs."""
    shards: int | None = getattr(program, _SHARDS, None)
    if shards is None:
        shards = power_of_2(shards_of(program))
        setattr(program, _SHARDS, shards)
    return shards


def call(program: functions.ConcreteFunction, inputs: Sequence[tf.Tensor], captured: Sequence[tf.Tensor]) -> Nested:
    """Runs the program on all replicas at once, or adds the run to the graph; results are replica 0's."""
    graph = tf.compat.v1.get_default_graph()
    if hasattr(graph, "watch_variable"):
        for variable in program.graph.variables:  # They have to live as long as the function around.
            gradients.note_use_of(variable)
    arguments = [*inputs, *captured]
    results = _run(program, arguments, timed=False) if tf.executing_eagerly() else _insert(program, arguments)
    return functions.results_of(program, results)


def _run(program: functions.ConcreteFunction, arguments: Sequence[tf.Tensor], *, timed: bool) -> list[tf.Tensor]:
    """The operation that runs the program; with `timed`, it records its own times."""
    results = ops.ipu_replicated_run(
        arguments,
        Tout=[output.dtype for output in program.outputs],
        f=program,
        shards=ipus_of_replica(program),
        shapes=[output.shape for output in program.outputs],
        timed=timed,
    )
    # A program without results is an operation in a graph, and None eagerly.
    return list(results) if isinstance(results, (list, tuple)) else []


def _insert(program: functions.ConcreteFunction, arguments: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Adds the run to the graph, with the gradient of a function's call, which fails on more than one replica."""
    of_call = gradients.of_call(program)

    def gradient(op: tf.Operation, *upstream: Gradient | None) -> tuple[Gradient | None, ...]:
        graphs.set_attribute(op, "differentiated", _TRUE)
        return of_call(op, *upstream)

    graph: tf.Graph = tf.compat.v1.get_default_graph()
    with gradients.overridden(graph, "IpuReplicatedRun", gradient), gradients.unrecorded():
        results = _run(program, arguments, timed=True)
    for result, output in zip(results, program.outputs, strict=True):
        result.set_shape(output.shape)
    if results:
        gradients.record_as(
            "IpuReplicatedRun", results, arguments, lambda *upstream: gradient(results[0].op, *upstream)
        )
    return results


@tf.RegisterGradient("IpuReplicatedRun")
def _refuse(op: tf.Operation, *upstream: Gradient | None) -> None:
    del op, upstream
    raise NotImplementedError(
        "there is no gradient through a run on replicas, whose inputs and results are replica 0's: take the gradient"
        " inside of the program, where `tf.GradientTape` and optimizers see all replicas"
    )


@dataclasses.dataclass(frozen=True)
class ReplicaGroups:
    """Divides the replicas of a program into groups of one size.

    8 replicas in groups of 2:

        ReplicaGroups(2)                   (0 1) (2 3) (4 5) (6 7)
        ReplicaGroups(2, orthogonal=True)  (0 4) (1 5) (2 6) (3 7)

    Operations that take a group size take one of these in its place. Within a group, replicas are in ascending order.

    Attributes:
      size: Replicas of a group, 1 or more. It must divide the number of replicas, which is known when the program runs.
        None makes one group of all.
      orthogonal: Whether the members of a group are as far apart as there are groups, and not neighbours.
    """

    size: int | None = None
    orthogonal: bool = False

    def __post_init__(self) -> None:
        """Checks the attributes."""
        check_size("size", self.size, optional=True)
        check_bool("orthogonal", self.orthogonal)


def check_size(argument: str, size: object, optional: bool) -> None:
    """Checks the size of a group of replicas."""
    if size is None and optional:
        return
    if not is_int(size):
        raise TypeError(f"`{argument}` must be a number of replicas or a `ReplicaGroups` that has one, but is {size!r}")
    if size < 1:
        raise ValueError(f"`{argument}` is {size}, and a group has at least one replica")
    if size > environment.MOST_IPUS:
        raise ValueError(f"`{argument}` is {size}, and there are at most {environment.MOST_IPUS} replicas")
