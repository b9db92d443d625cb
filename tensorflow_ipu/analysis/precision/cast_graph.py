"""The graph of a function with another floating type in the place of one, and without its assignments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tensorflow_ipu._tensorflow import functions

# Variables keep their types: what is read is converted.
_READS = {"ReadVariableOp": ("dtype", "value"), "ResourceGather": ("dtype", "output")}


def cast_graph(
    graph: tf.compat.v1.GraphDef, fetches: Sequence[str], source: tf.DType, target: tf.DType
) -> tf.compat.v1.GraphDef:
    """Returns the graph that computes the `fetches` with `target` in the place of `source`."""
    made = type(graph)()
    made.CopyFrom(graph)
    for node in made.node:  # Order is for side effects, of which there will be none.
        node.input[:] = [name for name in node.input if not name.startswith("^")]
    needed = _needed(made.node, fetches)
    for at in reversed(range(len(made.node))):
        if made.node[at].name not in needed or made.node[at].op == "Placeholder":
            del made.node[at]
    if source == target:
        return made
    types = _Types(source, target)
    suffix = f"in_{target.name}"
    names = {function.signature.name: f"{function.signature.name}_{suffix}" for function in made.library.function}
    _retype(made.node, types, names, in_function=False)
    for function in made.library.function:
        for argument in (*function.signature.input_arg, *function.signature.output_arg):
            argument.type = types.of(argument.type)
        renamed = _retype(function.node_def, types, {}, in_function=True)
        for node in function.node_def:
            node.input[:] = [renamed.get(name, name) for name in node.input]
        for key, value in function.ret.items():
            function.ret[key] = renamed.get(value, value)
    if made.library.function:
        functions.define(made.library.SerializeToString(), suffix)
        made.ClearField("library")
    return made


def _needed(nodes: Any, fetches: Sequence[str]) -> set[str]:
    """Returns the names of nodes that the fetches depend on."""
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
    """Retypes nodes in place, and returns the new names of outputs by their old ones."""
    renamed, casts = {}, []
    for node in nodes:
        op: str = node.op
        node.op = names.get(op, op)
        read = _READS.get(op)
        if read is not None:
            attribute, output = read
            if node.attr[attribute].type == types.source.as_datatype_enum:
                casts.append(_cast_of(node, f":{output}:0" * in_function, types))
                renamed[f"{casts[-1].name}:{output}:0"] = f"{casts[-1].name}:y:0"
            continue
        for value in node.attr.values():
            kind = value.WhichOneof("value")
            if kind == "type":
                value.type = types.of(value.type)
            elif kind == "func":
                value.func.name = names.get(value.func.name, value.func.name)
            elif kind == "list":
                value.list.type[:] = [types.of(each) for each in value.list.type]
                for function in value.list.func:
                    function.name = names.get(function.name, function.name)
            elif kind == "tensor" and value.tensor.dtype == types.source.as_datatype_enum:
                with np.errstate(over="ignore"):
                    array = tf.make_ndarray(value.tensor).astype(types.target.as_numpy_dtype)
                value.tensor.CopyFrom(tf.make_tensor_proto(array, types.target))
    nodes.extend(casts)
    return renamed


def _cast_of(node: Any, output: str, types: _Types) -> Any:
    """Returns a cast with the name of a node that reads a variable, and renames the node."""
    cast = type(node)()
    cast.name, cast.op = node.name, "Cast"
    node.name = f"{node.name}/read"
    cast.input.append(node.name + output)  # Within functions outputs have names, in graphs none.
    cast.attr["SrcT"].type = types.source.as_datatype_enum
    cast.attr["DstT"].type = types.target.as_datatype_enum
    return cast


def types_of(operations: Iterable[tf.Operation]) -> set[tf.DType]:
    """Returns the floating types of 16 and 32 bits that operations compute."""
    found = {output.dtype for operation in operations for output in operation.outputs}
    return found & {tf.float16, tf.float32}
