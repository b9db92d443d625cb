"""The placement of operations on the IPUs of a replica, by `scopes.ipu_shard` or by colocation."""

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

# TensorFlow's attribute for the names of colocated operations.
_COLOCATION = "_class"
_COLOCATION_PREFIX = b"loc:@"


def get_sharding(op: Node) -> list[int] | None:
    """Returns the IPUs on which an operation of a graph, or the operation of a tensor, is placed.

    Returns:
      The numbers of the IPUs within the replica, `[-1]` for all of them; None if the operation is not placed.

    Raises:
      TypeError: `op` is neither an operation of a graph nor a tensor of one.
    """
    return programs.placed_on(_operation("op", op))


def has_attr(o: Node, attr_name: str) -> bool:
    """Returns True if an operation of a graph, or the operation of a tensor, has an attribute of this name.

    Raises:
      TypeError: `o` is neither an operation of a graph nor a tensor of one.
    """
    return attr_name in _operation("o", o).node_def.attr


def dependencies(roots: Iterable[Node]) -> set[tf.Operation]:
    """Returns the operations of `roots`, and all operations of their graph that run before them.

    Raises:
      TypeError: `roots` is not a list of operations or tensors.
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
    """Returns the IPUs of the first placed operation with which `op` is colocated; None if there is none.

    Raises:
      TypeError: `op` is neither an operation of a graph nor a tensor of one.
    """
    operation = _operation("op", op)
    if _COLOCATION not in operation.node_def.attr:
        return None
    for colocation in operation.node_def.attr[_COLOCATION].list.s:
        name = colocation.removeprefix(_COLOCATION_PREFIX).decode()
        try:
            colocated = operation.graph.get_operation_by_name(name)
        except KeyError:  # The operation is in an outer graph.
            continue
        shards = None if colocated is operation else programs.placed_on(colocated)
        if shards is not None:
            return shards
    return None


def propagate_sharding(g: tf.Graph) -> None:
    """Copies the shards of placed operations of a graph to the unplaced operations that are colocated with them.

    `tf.gradients(..., colocate_gradients_with_ops=True)` colocates gradients in this way. Functions that the graph calls
    are not changed.

    Raises:
      TypeError: `g` is not a graph.
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
        f"`{argument}` must be an operation of a graph or a tensor of one, but is {node!r}: eager operations have no shard"
    )
