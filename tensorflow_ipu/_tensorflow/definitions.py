"""Functions as the runtime has them, by name: made of graphs, sent to other processes, known again there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.core.function import trace_type
from tensorflow.core.function.polymorphism import function_type
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import atomic_function, concrete_function, tracing_compilation
from tensorflow.python.framework import function_def_to_graph

if TYPE_CHECKING:
    from tensorflow_ipu._tensorflow.functions import ConcreteFunction
    from tensorflow_ipu._types import Nested


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


def attributes_of(program: ConcreteFunction) -> dict[str, bytes]:
    """The attributes of a concrete function, each a serialized `AttrValue`; stands on `ConcreteFunction._attrs`."""
    return {name: value.SerializeToString() for name, value in program._attrs.items()}


def restored(
    name: str,
    title: str,
    attributes_of_it: Mapping[str, bytes],
    kind: Any,
    captured: Sequence[tf.Tensor],
    variables: Sequence[tf.Variable],
    structured: Callable[[list[tf.Tensor]], Nested],
) -> ConcreteFunction:
    """A concrete function of a definition that the runtime has, see `define`: as tracing would have made it.

    Stands on `function_def_to_graph`, by which SavedModels are loaded too, and on what tracing makes of a graph. When it
    is gone: the function alone, called by `call_defined`, whose results are put together by the caller.

    Args:
      name: The name of the definition.
      title: What the function is called to users.
      attributes_of_it: What `attributes_of` gave of the function that it was.
      kind: What `functions.type_of_call` gave for the arguments.
      captured: What it captures, in the order of its last inputs.
      variables: Those of its variables.
      structured: From the flat results to what the Python function returned.
    """
    function_of_call, context_of_types = kind
    running: Any = context.context()
    graph: Any = function_def_to_graph.function_def_to_graph(running.get_function_def(name))
    for outside, inside in zip(captured, graph.inputs[len(graph.inputs) - len(captured) :], strict=True):
        graph.replace_capture(outside, inside)
    graph.name = title
    graph.variables = variables
    graph.structured_outputs = structured(graph.outputs)
    returned = trace_type.from_value(graph.structured_outputs, context_of_types)
    made = function_type.FunctionType(
        function_of_call.parameters.values(), graph.function_captures.capture_types, return_annotation=returned
    )
    parsed = {}
    for key, value in attributes_of_it.items():
        parsed[key] = tf.compat.v1.AttrValue()
        parsed[key].ParseFromString(value)
    found: Any = concrete_function.ConcreteFunction.from_func_graph(graph, made, parsed, shared_func_graph=False)
    tracing_compilation._set_arg_keywords(found)
    return found
