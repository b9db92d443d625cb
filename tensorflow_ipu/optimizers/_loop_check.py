"""Checks that gradients accumulate in loops of as many iterations as that takes."""

from __future__ import annotations

import functools

import tensorflow as tf

from tensorflow_ipu import replicas
from tensorflow_ipu._library import ops
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
        with graph.as_default():
            for demand in _outside_loops(graph, {}, graph):
                raise _outside(demand)


def _outside_loops(
    graph: graphs.FunctionGraph, known: dict[int, list[_Demand]], building: graphs.FunctionGraph
) -> list[_Demand]:
    """The demands of a graph and of the functions that it calls which are in no loop of theirs; checks the others."""
    if id(graph) in known:
        return known[id(graph)]
    found = known[id(graph)] = []
    for operation in list(graph.get_operations()):
        if operation.type in _trip_counts.LOOPS:
            body = _trip_counts.body_of(operation)
            demands = [] if body is None else _outside_loops(body, known, building)
            if demands:
                count = _trip_counts.trip_count(operation)
                if isinstance(count, _trip_counts.AtRun) and graph is building and replicas.is_tracing():
                    _check_at_run(demands, operation, count)
                else:
                    _check_count(demands, count)
        elif operation.type == "NoOp":
            found += _noted(operation)
        else:
            for callee in _callees(operation):
                found += _outside_loops(callee, known, building)
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


def _check_count(demands: list[_Demand], iterations: int | _trip_counts.AtRun | None) -> None:
    for demand in demands:
        _, number = demand
        if number == 1 or (isinstance(iterations, int) and iterations % number == 0):
            continue
        if isinstance(iterations, int):
            before, behind = _words_of_multiple(demand)
            raise tf.errors.FailedPreconditionError(None, None, f"{before}{iterations}{behind}")
        raise tf.errors.FailedPreconditionError(
            None,
            None,
            f"{_words(demand)} in a loop whose number of iterations is not known when the program is traced: some would"
            " never be applied. Give the loop a number that is a Python int, a constant or an argument of the program, and"
            " leave it by no `break`",
        )


def _check_at_run(demands: list[_Demand], loop: tf.Operation, count: _trip_counts.AtRun) -> None:
    """Has the run check the number of iterations: the loop gets its limit from the check."""
    with tf.control_dependencies(None), tf.device(loop.device):
        most = [tf.cast(loop.inputs[at], tf.int64) + added for at, added in count.limits]
        iterations = tf.maximum(functools.reduce(tf.minimum, most), 0)
        checked = iterations
        for demand in demands:
            before, behind = _words_of_multiple(demand)
            checked = ops.ipu_micro_batches(
                checked, multiple=demand[1], least=0, largest=tf.int64.max, before=before, behind=behind
            )
        # Not the checked number itself: where there are no iterations, the limit may be below it.
        at, _ = count.limits[0]
        limit = loop.inputs[at]
        graphs.replace_input(loop, at, limit + tf.cast(checked - iterations, limit.dtype))


def _words(demand: _Demand) -> str:
    optimizer, number = demand
    return f"`{optimizer}` accumulates the gradients of `num_mini_batches={number}` mini-batches"


def _words_of_multiple(demand: _Demand) -> tuple[str, str]:
    """The message where the number of iterations is no multiple: what comes before and behind that number."""
    return (
        f"{_words(demand)} in a loop of ",
        " iterations, which is no multiple of it: some would never be applied. Make the one a multiple of the other",
    )


def _outside(demand: _Demand) -> tf.errors.FailedPreconditionError:
    return tf.errors.FailedPreconditionError(
        None,
        None,
        f"{_words(demand)}, but is not inside a training loop of a program. Apply gradients in the body of a loop over"
        " `tf.range`, or of `loops.repeat`",
    )


patches.ACCUMULATION_LOOPS.by(_check)
