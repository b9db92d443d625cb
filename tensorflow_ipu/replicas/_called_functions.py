"""The functions that operations of a graph call, and what XLA names their operations."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import tensorflow as tf

from tensorflow_ipu._tensorflow import graphs

# Operations whose names are a part of the names of what they call; those of loops and branches are not.
CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def functions_of(graph: graphs.FunctionGraph, operation: tf.Operation) -> list[graphs.FunctionGraph]:
    """The graphs of the functions that an operation calls.

    Args:
      graph: The operation's graph.
      operation: The operation.
    """
    names = [operation.type]
    for attribute in _function_attributes(operation.type):
        value = operation.get_attr(attribute)
        names += [one.name for one in (value if isinstance(value, list) else [value])]
    functions = [function_of(graph, name) for name in names]
    return [function for function in functions if function is not None]


def function_of(graph: graphs.FunctionGraph, name: str) -> graphs.FunctionGraph | None:
    """The graph of the function of a name that operations of a graph can call; None where there is none."""
    found = (graphs.function_graph(one, name) for one in graphs.around(graph))
    return next((function for function in found if function is not None), None)


def named_operations(graph: graphs.FunctionGraph, prefix: str = "") -> Iterator[tuple[str, tf.Operation]]:
    """All operations of a graph and of the functions that it calls, each by the name that it has in the HLO.

    Args:
      graph: A graph.
      prefix: What the names begin with.
    """
    for operation in graph.get_operations():
        yield prefix + operation.name, operation
        for function in functions_of(graph, operation):
            yield from named_operations(function, scope_of_called(operation, prefix))


def scope_of_called(operation: tf.Operation, prefix: str) -> str:
    """What the names begin with in the HLO of the operations of a function.

    Args:
      operation: What calls the function. Names in loops and branches begin anew: each is compiled by itself.
      prefix: What the name of the operation begins with.
    """
    return f"{prefix}{operation.name}/" if operation.type in CALLS else ""


def without_inlining(name: str) -> str:
    """The name of an operation, of all that an instruction is called by which comes from a function that was inlined."""
    return name.rsplit(";", 1)[-1]


@functools.cache
def _function_attributes(kind: str) -> tuple[str, ...]:
    definition = graphs.definition_of(kind)
    attributes = [] if definition is None else definition.attr
    return tuple(attribute.name for attribute in attributes if attribute.type in ("func", "list(func)"))
