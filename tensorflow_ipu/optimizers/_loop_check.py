"""Checks that gradients accumulate in loops of as many iterations as that takes."""

from __future__ import annotations

import tensorflow as tf

from tensorflow_ipu._tensorflow import graphs, patches
from tensorflow_ipu.optimizers import _trip_counts

_ATTRIBUTE = "_ipu_mini_batches"

# The name of an optimizer, and the number of mini-batches that it accumulates.
_Demand = tuple[str, int]


def note(optimizer: str, num_mini_batches: int) -> None:
    """Notes in the program being traced that gradients accumulate here; the program is checked as its trace ends.

    Args:
      optimizer: The name of the optimizer's class, for messages.
      num_mini_batches: How many mini-batches make an update.

    Raises:
      tf.errors.FailedPreconditionError: No program is being traced.
    """
    if tf.executing_eagerly():
        raise _outside((optimizer, num_mini_batches))
    mark = tf.no_op(name=f"{optimizer}_in_loop")
    demand = tf.compat.v1.AttrValue(s=f"{optimizer} {num_mini_batches}".encode())
    graphs.set_attribute(mark, _ATTRIBUTE, demand)
    for graph in graphs.being_traced():
        patches.ACCUMULATION_LOOPS.apply_while(graph)


def _check(graph: graphs.FunctionGraph) -> None:
    """Called with each graph that TensorFlow is about to make a function of."""
    # The loop may be in the function around, whose turn is yet to come.
    if not graphs.is_function(graphs.enclosing(graph)):
        for demand in _outside_loops(graph, {}):
            raise _outside(demand)


def _outside_loops(graph: graphs.FunctionGraph, known: dict[int, list[_Demand]]) -> list[_Demand]:
    """The demands of a graph and of the functions that it calls which are in no loop of theirs; checks the others."""
    if id(graph) in known:
        return known[id(graph)]
    found = known[id(graph)] = []
    for operation in graph.get_operations():
        if operation.type in _trip_counts.LOOPS:
            body = _trip_counts.body_of(operation)
            demands = [] if body is None else _outside_loops(body, known)
            if demands:
                _check_count(demands, _trip_counts.trip_count(operation))
        elif operation.type == "NoOp":
            found += _noted(operation)
        else:
            for callee in _callees(operation):
                found += _outside_loops(callee, known)
    return found


def _noted(operation: tf.Operation) -> list[_Demand]:
    if _ATTRIBUTE not in operation.node_def.attr:
        return []
    optimizer, number = operation.get_attr(_ATTRIBUTE).decode().split()
    return [(optimizer, int(number))]


def _callees(operation: tf.Operation) -> list[graphs.FunctionGraph]:
    attributes = operation.node_def.attr.values()
    names = [attribute.func.name for attribute in attributes if attribute.HasField("func")]
    names += [function.name for attribute in attributes for function in attribute.list.func]
    graphs = [_trip_counts.graph_of(name, operation.graph) for name in names]
    return [graph for graph in graphs if graph is not None]


def _check_count(demands: list[_Demand], iterations: int | None) -> None:
    for optimizer, number in demands:
        if number == 1 or (iterations is not None and iterations % number == 0):
            continue
        if iterations is None:
            problem = "in a loop whose number of iterations is not known when the program is traced"
            way_out = "Give the loop a number that is a Python int or a constant, and leave it by no `break`"
        else:
            problem = f"in a loop of {iterations} iterations, which is no multiple of it"
            way_out = "Make the one a multiple of the other"
        raise tf.errors.FailedPreconditionError(
            None,
            None,
            f"`{optimizer}` accumulates the gradients of `num_mini_batches={number}` mini-batches {problem}: some would"
            f" never be applied. {way_out}",
        )


def _outside(demand: _Demand) -> tf.errors.FailedPreconditionError:
    optimizer, number = demand
    return tf.errors.FailedPreconditionError(
        None,
        None,
        f"`{optimizer}` accumulates the gradients of `num_mini_batches={number}` mini-batches, but is not inside a"
        " training loop of a program. Apply gradients in the body of a loop over `tf.range`, or of `loops.repeat`",
    )


patches.ACCUMULATION_LOOPS.by(_check)
