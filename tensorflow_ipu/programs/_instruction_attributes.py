"""The attributes of instructions that operations become, which XLA and the machine's report read."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator, Mapping

import tensorflow as tf

from tensorflow_ipu._tensorflow import graphs, xla

_logger = logging.getLogger(__name__)

# Operations whose names are a part of the names of what they call; those of loops and branches are not.
CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def functions_of(graph: graphs.FunctionGraph, operation: tf.Operation) -> list[graphs.FunctionGraph]:
    """Returns the graphs of the functions that an operation calls."""
    attributes = _function_attributes(operation.type)
    if attributes is None:
        names = [operation.type]
    elif attributes:
        values = [operation.get_attr(attribute) for attribute in attributes]
        names = [function.name for value in values for function in (value if isinstance(value, list) else [value])]
    else:  # As of most operations.
        return []
    called = [graphs.called_graph(graph, name) for name in names]
    return [function for function in called if function is not None]


def calls_in(graph: graphs.FunctionGraph) -> dict[tf.Operation, list[graphs.FunctionGraph]]:
    """Returns the operations of a graph that call functions, with the graphs of these."""
    calls = ((operation, functions_of(graph, operation)) for operation in graph.get_operations())
    return {operation: called for operation, called in calls if called}


def is_function(kind: str) -> bool:
    """Returns whether an operation's type is the name of a function."""
    return _function_attributes(kind) is None


def named_operations(graph: graphs.FunctionGraph, prefix: str = "") -> Iterator[tuple[str, tf.Operation]]:
    """All operations of a graph and of the functions that it calls, each by the name that it has in the HLO."""
    for operation in graph.get_operations():
        yield prefix + operation.name, operation
        for function in functions_of(graph, operation):
            yield from named_operations(function, scope_of_called(operation, prefix))


def scope_of_called(operation: tf.Operation, prefix: str) -> str:
    """The prefix of the names that a called function's operations have in the HLO."""
    return f"{prefix}{operation.name}/" if operation.type in CALLS else ""


def without_inlining(name: str) -> str:
    """The name of an operation within the name of an inlined instruction."""
    return name.rsplit(";", 1)[-1]


@functools.cache
def _function_attributes(kind: str) -> tuple[str, ...] | None:
    """Returns the attributes of an operation that are functions; None if it is itself a function."""
    definition = graphs.definition_of(kind)
    if definition is None:
        return None
    return tuple(attribute.name for attribute in definition.attr if attribute.type in ("func", "list(func)"))


# TensorFlow's bridge to XLA copies this one onto the instructions of the program.
_ATTRIBUTE = "_XlaFrontendAttributes"

# How numbers are computed: gradients compute as what they are the gradients of.
INHERITED = frozenset({"ipu_partials_type", "ipu_stochastic_rounding"})


def now() -> dict[str, str]:
    """The attributes that operations get now."""
    attribute = graphs.attribute_now(_ATTRIBUTE)
    return {} if attribute is None else xla.frontend_attributes(attribute.s)


@contextlib.contextmanager
def set_to(attributes: Mapping[str, str], after: Mapping[str, str] | None = None) -> Iterator[None]:
    """A block whose operations have these attributes besides those of the block around."""
    before = now()
    _set({**before, **attributes})
    try:
        yield
    finally:
        _set({**(after or {}), **before})


def add(operation: tf.Operation, attributes: Mapping[str, str]) -> None:
    """Adds attributes to an operation that is in a graph."""
    said = xla.frontend_attributes(operation.node_def.attr[_ATTRIBUTE].s)  # Nothing where it has none.
    graphs.set_attribute(operation, _ATTRIBUTE, _value({**said, **attributes}))


def inherited_from(operation: tf.Operation) -> dict[str, str]:
    """The attributes of an operation that its gradients have too."""
    attributes = operation.node_def.attr
    if _ATTRIBUTE not in attributes:
        return {}
    return _inherited(attributes[_ATTRIBUTE])


def is_told_how(graph: tf.Graph, operation: tf.Operation) -> bool:
    """Whether an operation, or the loop or function around it, has attributes of how to compute."""
    return bool(inherited_from(operation)) or are_told_how(graph)


def are_told_how(graph: tf.Graph) -> bool:
    """Returns whether what is added to a graph now, or the loop or function around it, has attributes of how to compute."""
    said = (graphs.attribute_now(_ATTRIBUTE, one) for one in graphs.around(graphs.enclosing(graph)))
    return any(_inherited(one) for one in said if one is not None)


def _inherited(attribute: tf.compat.v1.AttrValue) -> dict[str, str]:
    said = xla.frontend_attributes(attribute.s)
    return {name: value for name, value in said.items() if name in INHERITED}


def _set(attributes: Mapping[str, str]) -> None:
    graphs.leave_attribute(_ATTRIBUTE, _value(attributes) if attributes else None)


def _value(attributes: Mapping[str, str]) -> tf.compat.v1.AttrValue:
    return tf.compat.v1.AttrValue(s=xla.serialized_frontend_attributes(attributes))


def marker_entries(graph: graphs.FunctionGraph) -> Iterator[str]:
    """The attributes that scopes set for a program's float16 operations, as `IpuHalfPrecision` lists them."""
    # TensorFlow's bridge copies attributes to the instructions of most operations, but not of those that it lowers by MLIR
    # (`Einsum` and others), nor into loops and called functions. `kernels/precision/rounding.h` reads the entries.
    found: dict[str, Mapping[str, str]] = {}
    for name, said in _operations(graph, "", {}):
        if name in found and found[name] != said:
            _logger.warning(
                "two functions of the program have operations called `%s`, of which scopes say different things; both"
                " compute by the configuration: give one of them another name, by `tf.name_scope`",
                name,
            )
            found[name] = {}
            continue
        found[name] = said
    for name, said in found.items():
        for attribute, value in said.items():
            yield f"{attribute}:{name}={value}"


def _operations(
    graph: graphs.FunctionGraph, prefix: str, around: Mapping[str, str]
) -> Iterator[tuple[str, Mapping[str, str]]]:
    """All operations with an operand or result of float16, with their attributes and those of calls around."""
    for operation in graph.get_operations():
        said = {**around, **inherited_from(operation)}
        called = functions_of(graph, operation)
        for function in called:
            yield from _operations(function, scope_of_called(operation, prefix), said)
        if not called and any(one.dtype == tf.float16 for one in (*operation.outputs, *operation.inputs)):
            yield prefix + operation.name, said
