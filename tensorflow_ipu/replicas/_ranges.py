"""Ranges that a program has and does not use, which would have it compiled anew for each of their lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf

    from tensorflow_ipu._tensorflow import graphs


def leave_out(graph: graphs.FunctionGraph) -> None:
    """Has the function that TensorFlow is about to make of a graph do without the ranges that nothing uses.

    `for _ in tf.range(n)` becomes a loop over numbers, and leaves the tensor of `tf.range` behind. XLA has to know the
    length of a tensor when it compiles: with that tensor, a program would be compiled once for each value of `n`, and not
    at all where a loop around computes `n`.

    Args:
      graph: The `FuncGraph` of a traced function.
    """
    if any(map(_is_left_over, graph.get_operations())):
        # TensorFlow deletes no operation of a graph, and makes the function of those that the graph names.
        operations = graph.get_operations
        graph.get_operations = lambda: [op for op in operations() if not _is_left_over(op)]


def _is_left_over(op: tf.Operation) -> bool:
    if op.type != "Range" or op.outputs[0].consumers():
        return False
    return not any(op.outputs[0] is output for output in op.graph.outputs)
