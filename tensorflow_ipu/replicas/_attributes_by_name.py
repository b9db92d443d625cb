"""The attributes by which operations of a program compute, by the names that the operations have in its HLO."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

import tensorflow as tf

from tensorflow_ipu._tensorflow import graphs
from tensorflow_ipu.replicas import _instruction_attributes
from tensorflow_ipu.replicas._called_functions import functions_of, scope_of_called

_logger = logging.getLogger(__name__)


def marker_entries(graph: graphs.FunctionGraph) -> Iterator[str]:
    """What scopes set for a program's operations of float16, an entry each, as the `IpuHalfPrecision` operation lists it.

    TensorFlow's bridge to XLA copies attributes to the instructions of most operations, but not of those that it lowers
    by MLIR: `Einsum` and others. Nor do operations inside of a loop or a called function get the
    attributes of the call. `kernels/precision/options.h` reads the entries.

    Args:
      graph: The program's outermost graph, all of it traced.
    """
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
    """All operations with an operand or result of float16, with their attributes, or else those of the call around."""
    for operation in graph.get_operations():
        said = {**around, **_instruction_attributes.inherited_from(operation)}
        called = functions_of(graph, operation)
        for function in called:
            yield from _operations(function, scope_of_called(operation, prefix), said)
        if not called and _is_half(operation):
            yield prefix + operation.name, said


def _is_half(operation: tf.Operation) -> bool:
    return any(tensor.dtype == tf.float16 for tensor in (*operation.outputs, *operation.inputs))
