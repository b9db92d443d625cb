"""Rewrites the graph of a function to another floating-point type, and removes its assignments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tensorflow_ipu._tensorflow import functions

# Variables keep their types. The rewritten graph casts the values that these operations read.
_READS = {"ReadVariableOp": ("dtype", "value"), "ResourceGather": ("dtype", "output")}


def cast_graph(
    graph: tf.compat.v1.GraphDef, fetches: Sequence[str], source: tf.DType, target: tf.DType
) -> tf.compat.v1.GraphDef:
    """Returns the graph that computes `fetches` with the type `target` instead of `source`.

    The graph has only the nodes that the fetches depend on, so it assigns no variables. Functions that it calls are
    rewritten too, and defined under new names. For example, `Cast` nodes follow each read of a float32 variable, and
    constants are converted. Placeholders are removed, for `import_graph_def` to replace them by inputs of the new type.
    """
    result = type(graph)()
    result.CopyFrom(graph)
    for node in result.node:  # Control dependencies only order side effects, which this graph does not have.
        node.input[:] = [name for name in node.input if not name.startswith("^")]
    needed = _needed(result.node, fetches)
    for index in reversed(range(len(result.node))):
        if result.node[index].name not in needed or result.node[index].op == "Placeholder":
            del result.node[index]
    if source == target:
        return result
    types = _Types(source, target)
    suffix = f"in_{target.name}"
    names = {function.signature.name: f"{function.signature.name}_{suffix}" for function in result.library.function}
    _retype(result.node, types, names, in_function=False)
    for function in result.library.function:
        for argument in (*function.signature.input_arg, *function.signature.output_arg):
            argument.type = types.of(argument.type)
        renamed = _retype(function.node_def, types, {}, in_function=True)
        for node in function.node_def:
            node.input[:] = [renamed.get(name, name) for name in node.input]
        for key, value in function.ret.items():
            function.ret[key] = renamed.get(value, value)
    if result.library.function:
        functions.define(result.library.SerializeToString(), suffix)
        result.ClearField("library")
    return result


def _needed(nodes: Any, fetches: Sequence[str]) -> set[str]:
    """Returns the names of the nodes that the fetches depend on."""
    inputs = {node.name: [name.split(":")[0] for name in node.input] for node in nodes}
    needed: set[str] = set()
    waiting = list(fetches)
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += inputs[name]
    return needed


class _Types:
    def __init__(self, source: tf.DType, target: tf.DType) -> None:
        self.source, self.target = source, target

    def of(self, number: int) -> int:
        return self.target.as_datatype_enum if number == self.source.as_datatype_enum else number


def _retype(nodes: Any, types: _Types, names: dict[str, str], in_function: bool) -> dict[str, str]:
    """Changes the types of nodes in place, and returns the new names of outputs by their old names."""
    renamed, casts = {}, []
    for node in nodes:
        op: str = node.op
        node.op = names.get(op, op)
        read = _READS.get(op)
        if read is not None:
            attribute, output = read
            if node.attr[attribute].type == types.source.as_datatype_enum:
                casts.append(_cast_of(node, f":{output}:0" if in_function else "", types))
                renamed[f"{casts[-1].name}:{output}:0"] = f"{casts[-1].name}:y:0"
            continue
        for value in node.attr.values():
            kind = value.WhichOneof("value")
            if kind == "type":
                value.type = types.of(value.type)
            elif kind == "func":
                value.func.name = names.get(value.func.name, value.func.name)
            elif kind == "list":
                value.list.type[:] = [types.of(number) for number in value.list.type]
                for function in value.list.func:
                    function.name = names.get(function.name, function.name)
            elif kind == "tensor" and value.tensor.dtype == types.source.as_datatype_enum:
                with np.errstate(over="ignore"):
                    array = tf.make_ndarray(value.tensor).astype(types.target.as_numpy_dtype)
                value.tensor.CopyFrom(tf.make_tensor_proto(array, types.target))
    nodes.extend(casts)
    return renamed


def _cast_of(node: Any, output: str, types: _Types) -> Any:
    """Returns a cast of the value that a node reads from a variable.

    The cast gets the node's name, and the node a new one.
    """
    cast = type(node)()
    cast.name, cast.op = node.name, "Cast"
    node.name = f"{node.name}/read"
    cast.input.append(node.name + output)  # References to outputs contain the output's name only in functions.
    cast.attr["SrcT"].type = types.source.as_datatype_enum
    cast.attr["DstT"].type = types.target.as_datatype_enum
    return cast


def types_of(operations: Iterable[tf.Operation]) -> set[tf.DType]:
    """Returns the types that operations compute, out of float16 and float32."""
    types = {output.dtype for operation in operations for output in operation.outputs}
    return types & {tf.float16, tf.float32}
