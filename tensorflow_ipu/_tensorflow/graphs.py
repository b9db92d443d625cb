"""Graphs of functions: which are being traced, what they call, and what is on their operations."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps, auto_control_deps_utils, func_graph, op_def_registry
from tensorflow.python.ops import control_flow_ops, control_flow_util, control_flow_v2_func_graphs

# The graph of a function. Stands on `func_graph.FuncGraph`, which Keras has by `tf.__internal__`; public is `tf.Graph`
# alone, which captures nothing. Overridden are `capture`, called with each tensor from elsewhere, and
# `_create_op_internal`, called for each operation. When it is gone: what `tf.function` hands to its Python function as
# the default graph is its heir.
if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tensorflow_ipu._base.types import Nested, ShapeLike
    from tensorflow_ipu._tensorflow.functions import ConcreteFunction

    class FunctionGraph(tf.Graph):
        """What the package uses of `FuncGraph`, which is a `tf.Graph` of another module to type checkers."""

        inputs: list[tf.Tensor]
        outputs: list[tf.Tensor]
        control_outputs: list[tf.Operation]
        outer_graph: tf.Graph
        structured_outputs: Nested
        variables: Sequence[tf.Variable]
        name: str

        def __init__(self, name: str) -> None: ...
        @property
        def captures(self) -> list[tuple[tf.Tensor, tf.Tensor]]: ...
        def capture(self, tensor: tf.Tensor, name: str | None = None, shape: ShapeLike | None = None) -> tf.Tensor: ...
        def _create_op_internal(
            self, op_type: str, inputs: Sequence[tf.Tensor], *args: Any, **kwargs: Any
        ) -> tf.Operation: ...

else:
    FunctionGraph = func_graph.FuncGraph

# The graph of what a loop runs. Stands on `WhileBodyFuncGraph`, a `FunctionGraph` of which TensorFlow takes the devices and
# the name scope from around it; `tf.while_loop` alone makes one in public. When it is gone: a heir of `FunctionGraph`
# that `is_control_flow` and `in_loop` know.
if TYPE_CHECKING:

    class LoopBodyGraph(FunctionGraph):
        """What the package uses of it."""

else:
    LoopBodyGraph = control_flow_v2_func_graphs.WhileBodyFuncGraph

# Marks what is put into a graph as a part of what XLA compiles. Stands on `control_flow_ops.XLAControlFlowContext`;
# `tf.xla.experimental.compile` alone makes one in public, and replicates what is traced in it. When it is gone: look for
# what `GraphOrParentsInXlaContext` asks then.
XlaContext = control_flow_ops.XLAControlFlowContext


_default = tf.compat.v1.get_default_graph


def is_function(graph: object) -> bool:
    """Returns True if a graph is that of a function; see `FunctionGraph`."""
    return isinstance(graph, FunctionGraph)


def around(graph: tf.Graph | None) -> Iterator[tf.Graph]:
    """Returns the graph, if any, and those around it, from the innermost out; stands on `FuncGraph.outer_graph`."""
    # The outermost may be no function's. Without it: keep the default graphs of a trace on a stack.
    while graph is not None:
        yield graph
        graph = enclosing(graph)


def enclosing(graph: tf.Graph) -> tf.Graph | None:
    """Returns the graph in which that of a function is traced; None for one that is no function's. See `around`."""
    return getattr(graph, "outer_graph", None)


def being_traced() -> Iterator[FunctionGraph]:
    """Returns the graphs of the functions that are being traced now, from the innermost out; see `around`."""
    for graph in around(_default()):
        if not isinstance(graph, FunctionGraph):
            return
        yield graph


def being_built() -> list[tf.Graph]:
    """Those that are built now, from the innermost out, without the one that lasts as long as the process; see `around`."""
    eager = tf.compat.v1.executing_eagerly_outside_functions()
    return [graph for graph in around(_default()) if is_function(graph) or not eager]


def replace_input(operation: tf.Operation, at: int, tensor: tf.Tensor) -> None:
    """Gives an operation of a graph another input of the same type; stands on `Operation._update_input`."""
    # Without it: `TF_UpdateEdge` by the C API.
    operation._update_input(at, tensor)  # pyright: ignore[reportAttributeAccessIssue]


def in_loop(graph: tf.Graph) -> bool:
    """Returns True if operations of the graph run in a loop, as far as is known; stands on `WhileBodyFuncGraph`."""
    # A graph that will be called in a loop is traced outside of it, and has an attribute `runs_in_loop` that is True. Without
    # it: what `while_v2.while_loop` traces bodies into.
    body = control_flow_v2_func_graphs.WhileBodyFuncGraph
    return any(isinstance(one, body) or getattr(one, "runs_in_loop", False) for one in around(graph))


def in_condition() -> bool:
    """Whether what is being traced is the condition of a loop; stands on `WhileCondFuncGraph`, see `in_loop`."""
    graph = _default()
    while isinstance(graph, control_flow_v2_func_graphs.CondBranchFuncGraph):
        graph = graph.outer_graph
    return isinstance(graph, control_flow_v2_func_graphs.WhileCondFuncGraph)


def is_control_flow(graph: object) -> bool:
    """Returns True if a graph is a part of a loop or a branch; stands on `ControlFlowFuncGraph`, see `in_loop`."""
    return isinstance(graph, control_flow_v2_func_graphs.ControlFlowFuncGraph)


def is_branch(graph: object) -> bool:
    """Returns True if a graph is that of a branch; stands on `CondBranchFuncGraph`, see `in_loop`."""
    return isinstance(graph, control_flow_v2_func_graphs.CondBranchFuncGraph)


def outside_control_flow() -> tf.Graph:
    """Returns the graph that is being built, without the loops and branches that it is in; see `around`."""
    return next(graph for graph in around(_default()) if not is_control_flow(graph))


def is_compiled(graph: tf.Graph) -> bool:
    """Returns True if XLA will compile a graph; stands on `control_flow_util.GraphOrParentsInXlaContext`."""
    # Without it: `tf.__internal__.get_enclosing_xla_context` for each graph of `around`.
    return control_flow_util.GraphOrParentsInXlaContext(graph)


_Context = TypeVar("_Context", bound=XlaContext)


def compilation_context(graph: tf.Graph | None, kind: type[_Context]) -> _Context | None:
    """Returns the innermost context of a kind on a graph or one around it; stands on `Graph._get_control_flow_context`."""
    # It is the only mark on a graph that keeps traces of functions apart. Without it: `scope_type` of `functions.with_target`
    # and a table of graphs.
    while graph is not None:
        context = graph._get_control_flow_context()
        while context is not None:
            if isinstance(context, kind):
                return context
            context = context.outer_context
        graph = getattr(graph, "outer_graph", None)
    return None


@contextlib.contextmanager
def in_compilation_context(context: Any) -> Iterator[None]:
    """A block in which the graph that is being built has this context of control flow; see `compilation_context`."""
    graph = _default()
    before = graph._get_control_flow_context()
    graph._set_control_flow_context(context)
    try:
        yield
    finally:
        graph._set_control_flow_context(before)


def functions_in(graph: tf.Graph) -> Mapping[str, Any]:
    """Returns the functions that a graph itself holds, by name; stands on `Graph._functions`."""
    # `graph.as_graph_def().library` has no Python graphs. Without it: that, and a table kept by `functions.of_graph`.
    return getattr(graph, "_functions", {})


def called_graph(graph: tf.Graph, name: str) -> FunctionGraph | None:
    """Returns the graph of the function that operations of `graph` call by this name; see `around` and `functions_in`."""
    called = (getattr(functions_in(holder).get(name), "graph", None) for holder in around(graph))
    return next((function for function in called if function is not None), None)


def function_named(graph: tf.Graph, name: str) -> Any:
    """The function that `graph` or one around it calls by this name, or None; stands on `Graph._get_function`."""
    return graph._get_function(name)


def hold_function(graph: tf.Graph, function: Any) -> None:
    """Has a graph hold a function and all it calls; stands on `Graph._add_function_recursive`."""
    # In public, only a call does so. Without it: call it there once, in a branch that nothing uses.
    graph._add_function_recursive(function)


def graphs_of(program: ConcreteFunction | tf.Graph) -> list[tf.Graph]:
    """Returns the graph of a program, and those of all functions that it calls; see `functions_in`."""
    graphs: list[tf.Graph] = []
    waiting: list[Any] = [getattr(program, "graph", program)]
    seen: set[int] = set()
    while waiting:
        graph = waiting.pop()
        if id(graph) in seen:
            continue
        seen.add(id(graph))
        graphs.append(graph)
        called = (getattr(function, "graph", None) for function in functions_in(graph).values())
        waiting += [graph for graph in called if graph is not None]
    return graphs


def trace_into(graph: FunctionGraph, function: Callable[..., Any], args: Nested, kwargs: Nested = None) -> None:
    """Traces a Python function into a graph, side effects in order; stands on `func_graph_from_py_func`."""
    # `tf.function` makes a graph of its own class, whose `capture` could not be ours. Without it: enter `graph.as_default()`
    # and `in_order_of_side_effects`, and call the function with placeholders.
    func_graph.func_graph_from_py_func(
        graph.name, function, args, kwargs or {}, func_graph=graph, add_control_dependencies=True
    )


def in_order_of_side_effects() -> Any:
    """A block whose side effects run in order, used or not; stands on `AutomaticControlDependencies`."""
    # Its `ops_which_must_run` are known at the end of the block. Without it: `tf.control_dependencies` from each stateful
    # operation to the next.
    return auto_control_deps.AutomaticControlDependencies()


def declare_read_only(operation: str) -> None:
    """Says that an operation only reads its resource; stands on `register_read_only_resource_op`."""
    # Without it: nothing is wrong, but programs wait where they need not.
    auto_control_deps_utils.register_read_only_resource_op(operation)


def read_only_inputs(graph: tf.Graph) -> list[int]:
    """Returns the inputs of a graph that it only reads; stands on `get_read_only_resource_input_indices_graph`."""
    # Without it: the inputs whose consumers are all `ReadVariableOp`.
    return auto_control_deps_utils.get_read_only_resource_input_indices_graph(graph)


def say_read_only(operation: tf.Operation, inputs: Sequence[int]) -> None:
    """Says which resources a call of functions only reads; stands on `READ_ONLY_RESOURCE_INPUTS_ATTR`."""
    # TensorFlow sets it on its own calls. Without it: see `declare_read_only`.
    value = tf.compat.v1.AttrValue(list=tf.compat.v1.AttrValue.ListValue(i=inputs))
    set_attribute(operation, auto_control_deps_utils.READ_ONLY_RESOURCE_INPUTS_ATTR, value)


def definition_of(operation: str) -> Any:
    """Returns the `OpDef` of a kind of operation; None for a function's name; stands on `op_def_registry.get`."""
    # Without it: `operation.op_def`, which is public.
    return op_def_registry.get(operation)


# Operations whose names are a part of the names of what they call; those of loops and branches are not.
CALLS = ("PartitionedCall", "StatefulPartitionedCall")


@functools.cache
def _function_attributes(kind: str) -> tuple[str, ...] | None:
    """Returns the attributes of an operation that are functions; None if it is itself a function; see `definition_of`."""
    definition = definition_of(kind)
    if definition is None:
        return None
    return tuple(attribute.name for attribute in definition.attr if attribute.type in ("func", "list(func)"))


def functions_of(graph: FunctionGraph, operation: tf.Operation) -> list[FunctionGraph]:
    """Returns the graphs of the functions that an operation calls; see `called_graph`."""
    attributes = _function_attributes(operation.type)
    if attributes is None:
        names = [operation.type]
    elif attributes:
        values = [operation.get_attr(attribute) for attribute in attributes]
        names = [function.name for value in values for function in (value if isinstance(value, list) else [value])]
    else:  # As of most operations.
        return []
    called = [called_graph(graph, name) for name in names]
    return [function for function in called if function is not None]


def named_operations(graph: FunctionGraph, prefix: str = "") -> Iterator[tuple[str, tf.Operation]]:
    """Yields all operations of a graph and of the functions that it calls, by their names in HLO; see `called_graph`."""
    for operation in graph.get_operations():
        yield prefix + operation.name, operation
        for function in functions_of(graph, operation):
            yield from named_operations(function, scope_of_called(operation, prefix))


def scope_of_called(operation: tf.Operation, prefix: str) -> str:
    """Returns the prefix of the names that a called function's operations have in HLO; see `named_operations`."""
    return f"{prefix}{operation.name}/" if operation.type in CALLS else ""


def without_inlining(name: str) -> str:
    """Returns the name of an operation within the name of an inlined instruction; see `named_operations`."""
    return name.rsplit(";", 1)[-1]


def copy_operation(
    graph: tf.Graph, operation: tf.Operation, inputs: Sequence[tf.Tensor], attributes: Mapping[str, Any]
) -> tf.Operation:
    """Copies an operation into a function's graph, with other inputs; stands on `FuncGraph._create_op_internal`."""
    # `Graph.create_op` captures inputs another way. Without it: that one.
    return graph._create_op_internal(
        operation.type,
        inputs,
        [each.dtype for each in operation.outputs],
        name=operation.name,
        attrs=attributes,
        op_def=operation.op_def,
    )


def set_attribute(operation: tf.Operation, name: str, value: Any) -> None:
    """Sets an attribute (`tf.compat.v1.AttrValue`) of an operation; stands on `Operation._set_attr`."""
    # Without it: `attributed` around the making of the operation.
    operation._set_attr(name, value)


def place(operation: tf.Operation, device: str) -> None:
    """Places an operation that is in a graph; stands on `Operation._set_device`, as `set_attribute` does."""
    operation._set_device(device)


def attributed(attributes: Mapping[str, Any]) -> AbstractContextManager[None]:
    """A block whose operations get these attributes (None clears one); stands on `Graph._attr_scope`."""
    # Without it: `set_attribute` on each operation that the block has added.
    return _default()._attr_scope(attributes)


def attribute_now(name: str, graph: Any = None) -> Any:
    """The attribute that operations of a graph get now, or None; stands on `Graph._attr_scope_map`, see `attributed`."""
    return (graph or _default())._attr_scope_map.get(name)


def has_attribute_now(name: str) -> bool:
    """Returns True if operations get this attribute now, be it an empty one; see `attribute_now`."""
    return name in _default()._attr_scope_map


def leave_attribute(name: str, value: Any) -> None:
    """Sets an attribute of all later operations; None takes it away; stands on `Graph._attr_scope_map`."""
    scope = _default()._attr_scope_map
    if value is None:
        scope.pop(name, None)
    else:
        scope[name] = value


def share_python_functions(graph: Any, other: Any) -> None:
    """Has a graph keep the Python functions of another one; stands on `Graph._py_funcs_used_in_graph`."""
    # TensorFlow looks up those of `tf.py_function` by the outermost graph. Without it: a test prints from a part of a program.
    if not hasattr(other, "_py_funcs_used_in_graph"):
        other._py_funcs_used_in_graph = []
    graph._py_funcs_used_in_graph = other._py_funcs_used_in_graph


def outermost_of(graph: FunctionGraph) -> tf.Graph:
    """What a function's graph falls back to where none is around; stands on `FuncGraph._fallback_outer_graph`."""
    return graph._fallback_outer_graph
