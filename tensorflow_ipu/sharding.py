"""The IPUs of its replica that each operation is placed on: by `scopes.ipu_shard`, or beside another operation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._base.checks import check_instance

if TYPE_CHECKING:
    from typing import TypeAlias

    Node: TypeAlias = tf.Operation | tf.Tensor | tf.IndexedSlices

__all__ = [
    "dependencies",
    "enable_sharded_gradient_tape",
    "get_shard_from_colocation",
    "get_sharding",
    "has_attr",
    "propagate_sharding",
]

# Names the operations that one was made to be beside.
_COLOCATION = "_class"
_BESIDE = b"loc:@"


def get_sharding(op: Node) -> list[int] | None:
    """Returns the IPUs that an operation of a graph, or a tensor's, was placed on.

    Returns:
      Their numbers within the replica, `[-1]` for all of them; None if it was not placed.

    Raises:
      TypeError: `op` is neither.
    """
    return programs.placed_on(_operation("op", op))


def has_attr(o: Node, attr_name: str) -> bool:
    """Returns True if an operation of a graph, or a tensor's, has an attribute of this name.

    Raises:
      TypeError: `o` is neither.
    """
    return attr_name in _operation("o", o).node_def.attr


def dependencies(roots: Iterable[Node]) -> set[tf.Operation]:
    """Returns the operations of a list of operations or tensors, and all of their graph that have to run before them.

    Raises:
      TypeError: `roots` has something else in it, or is no list.
    """
    if isinstance(roots, (tf.Operation, tf.Tensor, tf.IndexedSlices)):
        raise TypeError(f"`roots` must be a list of operations or tensors, but is one of them: write `[{roots.name}]`")
    operations: set[tf.Operation] = set()
    waiting = [_operation("roots", root) for root in roots]
    while waiting:
        operation = waiting.pop()
        if operation not in operations:
            operations.add(operation)
            waiting += [tensor.op for tensor in operation.inputs]
            waiting += operation.control_inputs
    return operations


def get_shard_from_colocation(op: Node) -> list[int] | None:
    """Returns the IPUs, as `get_sharding` does, of the first operation with any that this one was colocated with.

    Raises:
      TypeError: `op` is neither an operation of a graph nor a tensor of one.
    """
    operation = _operation("op", op)
    if _COLOCATION not in operation.node_def.attr:
        return None
    for beside in operation.node_def.attr[_COLOCATION].list.s:
        name = beside.removeprefix(_BESIDE).decode()
        try:
            other = operation.graph.get_operation_by_name(name)
        except KeyError:  # It is in the graph around.
            continue
        shards = None if other is operation else programs.placed_on(other)
        if shards is not None:
            return shards
    return None


def propagate_sharding(g: tf.Graph) -> None:
    """Places operations of a graph without a shard on that of the operations that they were made to be beside.

    Gradients by `tf.gradients(..., colocate_gradients_with_ops=True)` are such. Functions that the graph calls stay.

    Raises:
      TypeError: It is no graph.
    """
    check_instance("g", g, tf.Graph, "a `tf.Graph`")
    waiting = [operation for operation in g.get_operations() if programs.placed_on(operation) is None]
    while waiting:
        placed = {operation: shards for operation in waiting if (shards := get_shard_from_colocation(operation))}
        for operation, shards in placed.items():
            programs.place_on(operation, shards)
        if not placed:
            break
        waiting = [operation for operation in waiting if operation not in placed]


def enable_sharded_gradient_tape() -> None:
    """Does nothing: gradients of tapes follow the shards of their operations from the first `scopes.ipu_shard` on."""


def _operation(argument: str, node: object) -> tf.Operation:
    if isinstance(node, tf.Operation):
        return node
    if isinstance(node, tf.IndexedSlices):
        node = node.values
    if isinstance(node, tf.Tensor) and hasattr(node, "graph"):
        return node.op
    raise TypeError(
        f"`{argument}` must be an operation of a graph or a tensor of one, but is {node!r}: what runs at once is on no shard"
    )
