"""Functions as the runtime has them, by name: made of graphs, sent to other processes, known again there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.core.function.polymorphism import function_type
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import atomic_function

if TYPE_CHECKING:
    from tensorflow_ipu._tensorflow.functions import ConcreteFunction


def of_graph(name: str, graph: tf.Graph, *, called: bool = True) -> Any:
    """A function of the runtime, of this name, made of a graph with its `inputs` and `outputs`.

    Python can call it by `call_flat(*inputs)`, unless `called` is False, where the graph need not be one of `trace_into`.

    Stands on `atomic_function.from_func_graph`: `tf.function` traces graphs of its own, and `tf.compat.v1.wrap_function`
    lifts variables. When it is gone: `ConcreteFunction.from_func_graph`, or `context.add_function_def` with the graph's
    definition.
    """
    made: Any = graph
    return atomic_function.from_func_graph(name, made, {}, None if called else function_type.FunctionType([]))


def definitions_of(program: ConcreteFunction) -> bytes:
    """A concrete function and all that it calls, as a serialized `FunctionDefLibrary`, itself first.

    Stands on `ConcreteFunction.function_def`, with the attributes that it is called with. When it is gone:
    `tf.Graph.as_graph_def` of a graph that calls it, whose library has it as well.
    """
    library = program.graph.as_graph_def().library
    made = type(library)()
    made.function.add().CopyFrom(program.function_def)
    for function in library.function:
        if function.signature.name != made.function[0].signature.name:
            made.function.add().CopyFrom(function)
    return made.SerializeToString()


def define(library: bytes, suffix: str) -> str:
    """Has the runtime know the functions of `definitions_of`, under names with a suffix; returns that of the first.

    Stands on `context.add_function_def`: what is public loads SavedModels, with variables of their own. When it is gone:
    `tf.graph_util.import_graph_def` of a graph that calls the function, and its concrete function.
    """
    made = tf.compat.v1.GraphDef().library
    made.ParseFromString(library)
    names = {function.signature.name: f"{function.signature.name}_{suffix}" for function in made.function}
    for function in made.function:
        function.signature.name = names[function.signature.name]
        for node in function.node_def:
            node.op = names.get(node.op, node.op)
            for attribute in node.attr.values():
                is_one = attribute.WhichOneof("value") == "func"
                for called in [attribute.func] if is_one else attribute.list.func:
                    called.name = names.get(called.name, called.name)
    running: Any = context.context()
    for function in reversed(made.function):
        running.add_function_def(function)
    return made.function[0].signature.name


def call_defined(name: str, inputs: Sequence[tf.Tensor], results: int) -> None:
    """Calls a function of `define` eagerly, compiled if its definition says so; its results are dropped.

    Stands on `Context.call_function`. When it is gone: `tf.raw_ops.StatefulPartitionedCall` in a function that is compiled.
    """
    running: Any = context.context()
    running.call_function(name.encode(), list(inputs), results)
