"""Queries and edits the graphs of functions, their captures and the attributes of their operations."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps, auto_control_deps_utils, func_graph, op_def_registry
from tensorflow.python.ops import control_flow_ops, control_flow_util, control_flow_v2_func_graphs

# The graph of a function. Uses the private `func_graph.FuncGraph`, on which Keras relies too, by `tf.__internal__`. The
# public `tf.Graph` captures nothing. Subclasses here override `capture`, which is called with each tensor of another
# graph, and `_create_op_internal`, which is called for each operation. Without it: take the class of the default graph
# while `tf.function` traces.
if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tensorflow_ipu._base.types import Nested, ShapeLike
    from tensorflow_ipu._tensorflow.functions import ConcreteFunction

    class FunctionGraph(tf.Graph):
        """The members of `FuncGraph` that the package uses.

        To type checkers, `FuncGraph` is no subclass of `tf.Graph`.
        """

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

# The graph of a loop's body. Uses the private `WhileBodyFuncGraph`, a `FunctionGraph` that inherits devices and name
# scope from the graph around it. Of the public API, only `tf.while_loop` creates one. Without it: a subclass
# of `FunctionGraph` that `is_control_flow` and `in_loop` recognize.
if TYPE_CHECKING:

    class LoopBodyGraph(FunctionGraph):
        """The members of `WhileBodyFuncGraph` that the package uses."""

else:
    LoopBodyGraph = control_flow_v2_func_graphs.WhileBodyFuncGraph

# Marks the operations that are added to a graph as compiled by XLA. Uses the private
# `control_flow_ops.XLAControlFlowContext`. Of the public API, only `tf.xla.experimental.compile` creates such a
# context, and it replicates the operations. Without it: set the mark that `GraphOrParentsInXlaContext` then checks.
XlaContext = control_flow_ops.XLAControlFlowContext


_default = tf.compat.v1.get_default_graph


def is_function(graph: object) -> bool:
    """Returns True if `graph` is the graph of a function; see `FunctionGraph`."""
    return isinstance(graph, FunctionGraph)


def around(graph: tf.Graph | None) -> Iterator[tf.Graph]:
    """Yields `graph` and its enclosing graphs, the innermost first. Uses the private `FuncGraph.outer_graph`."""
    # The outermost graph need not be that of a function. Without it: keep the default graphs of a trace on a stack.
    while graph is not None:
        yield graph
        graph = enclosing(graph)


def enclosing(graph: tf.Graph) -> tf.Graph | None:
    """Returns the graph in which the function of `graph` is traced, or None without a function; see `around`."""
    return getattr(graph, "outer_graph", None)


def being_traced() -> Iterator[FunctionGraph]:
    """Yields the graphs of the functions that this thread traces, the innermost first; see `around`."""
    for graph in around(_default()):
        if not isinstance(graph, FunctionGraph):
            return
        yield graph


def being_built() -> list[tf.Graph]:
    """Returns the graphs that this thread builds, the innermost first; see `around`.

    The default graph of the process does not count: nothing is built in it during eager execution.
    """
    eager = tf.compat.v1.executing_eagerly_outside_functions()
    return [graph for graph in around(_default()) if is_function(graph) or not eager]


def replace_input(operation: tf.Operation, index: int, tensor: tf.Tensor) -> None:
    """Replaces input `index` of an operation by a tensor of the same type. Uses the private `Operation._update_input`."""
    # Without it: call `TF_UpdateEdge` of the C API.
    operation._update_input(index, tensor)  # pyright: ignore[reportAttributeAccessIssue]


def in_loop(graph: tf.Graph) -> bool:
    """Returns True if operations of `graph` run in a loop. Uses the private `WhileBodyFuncGraph`."""
    # A function may be traced outside of the loop that will call it. The attribute `runs_in_loop` marks its graph.
    # Without it: take the class of the graphs in which `while_v2.while_loop` traces bodies.
    body = control_flow_v2_func_graphs.WhileBodyFuncGraph
    return any(isinstance(outer, body) or getattr(outer, "runs_in_loop", False) for outer in around(graph))


def in_condition() -> bool:
    """Returns True while the condition of a loop is traced. Uses the private `WhileCondFuncGraph`; see `in_loop`."""
    graph = _default()
    while isinstance(graph, control_flow_v2_func_graphs.CondBranchFuncGraph):
        graph = graph.outer_graph
    return isinstance(graph, control_flow_v2_func_graphs.WhileCondFuncGraph)


def is_control_flow(graph: object) -> bool:
    """Returns True if `graph` belongs to a loop or a branch. Uses the private `ControlFlowFuncGraph`; see `in_loop`."""
    return isinstance(graph, control_flow_v2_func_graphs.ControlFlowFuncGraph)


def is_branch(graph: object) -> bool:
    """Returns True if `graph` is the graph of a branch. Uses the private `CondBranchFuncGraph`; see `in_loop`."""
    return isinstance(graph, control_flow_v2_func_graphs.CondBranchFuncGraph)


def outside_control_flow() -> tf.Graph:
    """Returns the innermost graph that is being built and is neither a loop nor a branch; see `around`."""
    return next(graph for graph in around(_default()) if not is_control_flow(graph))


def is_compiled(graph: tf.Graph) -> bool:
    """Returns True if XLA will compile `graph`. Uses the private `control_flow_util.GraphOrParentsInXlaContext`."""
    # Without it: call `tf.__internal__.get_enclosing_xla_context` for each graph of `around`.
    return control_flow_util.GraphOrParentsInXlaContext(graph)


_Context = TypeVar("_Context", bound=XlaContext)


def compilation_context(graph: tf.Graph | None, kind: type[_Context]) -> _Context | None:
    """Returns the innermost context of class `kind` on `graph` or an enclosing graph, or None.

    Uses the private `Graph._get_control_flow_context`.
    """
    # TensorFlow traces a function separately for each such context, and for no other mark of a graph. Without it: set
    # `scope_type` as `functions.known_trace` does, and keep a table of graphs.
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
    """Runs the block with `context` as the control flow context of the default graph; see `compilation_context`."""
    graph = _default()
    previous = graph._get_control_flow_context()
    graph._set_control_flow_context(context)
    try:
        yield
    finally:
        graph._set_control_flow_context(previous)


def functions_in(graph: tf.Graph) -> Mapping[str, Any]:
    """Returns the functions that `graph` itself holds, by name. Uses the private `Graph._functions`."""
    # The public `graph.as_graph_def().library` has no Python graphs. Without it: use the library, and a table of graphs
    # that `functions.of_graph` fills.
    return getattr(graph, "_functions", {})


def called_graph(graph: tf.Graph, name: str) -> FunctionGraph | None:
    """Returns the graph of the function that operations of `graph` call by `name`, or None; see `functions_in`."""
    called = (getattr(functions_in(holder).get(name), "graph", None) for holder in around(graph))
    return next((function for function in called if function is not None), None)


def function_named(graph: tf.Graph, name: str) -> Any:
    """Returns the function that `graph` or an enclosing graph calls by `name`.

    Uses the private `Graph._get_function`.
    """
    return graph._get_function(name)


def hold_function(graph: tf.Graph, function: Any) -> None:
    """Adds a function and all that it calls to `graph`. Uses the private `Graph._add_function_recursive`."""
    # Of the public API, only a call adds the function. Without it: call the function once in a branch that is not used.
    graph._add_function_recursive(function)


def graphs_of(program: ConcreteFunction | tf.Graph) -> list[tf.Graph]:
    """Returns the graph of a program and the graphs of all functions that it calls; see `functions_in`."""
    graphs: list[tf.Graph] = []
    waiting: list[Any] = [getattr(program, "graph", program)]
    visited: set[int] = set()
    while waiting:
        graph = waiting.pop()
        if id(graph) in visited:
            continue
        visited.add(id(graph))
        graphs.append(graph)
        called = (getattr(function, "graph", None) for function in functions_in(graph).values())
        waiting += [graph for graph in called if graph is not None]
    return graphs


def trace_into(graph: FunctionGraph, function: Callable[..., Any], args: Nested, kwargs: Nested = None) -> None:
    """Traces a function into `graph`, side effects in order. Uses the private `func_graph_from_py_func`."""
    # `tf.function` creates the graph itself, so its `capture` cannot be overridden. Without it: enter
    # `graph.as_default()` and `in_order_of_side_effects`, and call the function with placeholders.
    func_graph.func_graph_from_py_func(
        graph.name, function, args, kwargs or {}, func_graph=graph, add_control_dependencies=True
    )


def in_order_of_side_effects() -> Any:
    """Makes side effects of the block run, and in order. Uses the private `AutomaticControlDependencies`."""
    # After the block, the attribute `ops_which_must_run` of the returned object is complete. Without it: add
    # `tf.control_dependencies` from each stateful operation to the next.
    return auto_control_deps.AutomaticControlDependencies()


def declare_read_only(operation: str) -> None:
    """Registers that an operation only reads its resource. Uses the private `register_read_only_resource_op`."""
    # Without it: do nothing. Results stay right, but operations wait for each other without need.
    auto_control_deps_utils.register_read_only_resource_op(operation)


def read_only_inputs(graph: tf.Graph) -> list[int]:
    """Returns the indices of the resource inputs that `graph` only reads.

    Uses the private `get_read_only_resource_input_indices_graph`.
    """
    # Without it: return the inputs whose consumers are all `ReadVariableOp`.
    return auto_control_deps_utils.get_read_only_resource_input_indices_graph(graph)


def mark_read_only(operation: tf.Operation, inputs: Sequence[int]) -> None:
    """Marks the inputs that a call only reads. Uses the private `READ_ONLY_RESOURCE_INPUTS_ATTR`."""
    # TensorFlow sets this attribute on the calls that it creates. Without it: see `declare_read_only`.
    value = tf.compat.v1.AttrValue(list=tf.compat.v1.AttrValue.ListValue(i=inputs))
    set_attribute(operation, auto_control_deps_utils.READ_ONLY_RESOURCE_INPUTS_ATTR, value)


def definition_of(operation: str) -> Any:
    """Returns the `OpDef` of an operation's type; None for the name of a function.

    Uses the private `op_def_registry`.
    """
    # Without it: use the public `Operation.op_def`.
    return op_def_registry.get(operation)


# In HLO, names of operations in a called function begin with the name of the call. Loops and branches add no such
# prefix.
CALLS = ("PartitionedCall", "StatefulPartitionedCall")


@functools.cache
def _function_attributes(kind: str) -> tuple[str, ...] | None:
    """Returns the attributes of `kind` that hold functions; None if `kind` is a function; see `definition_of`."""
    definition = definition_of(kind)
    if definition is None:
        return None
    return tuple(attribute.name for attribute in definition.attr if attribute.type in ("func", "list(func)"))


def functions_of(graph: FunctionGraph, operation: tf.Operation) -> list[FunctionGraph]:
    """Returns the graphs of the functions that `operation` calls; see `called_graph`."""
    attributes = _function_attributes(operation.type)
    if attributes is None:
        names = [operation.type]
    elif attributes:
        values = [operation.get_attr(attribute) for attribute in attributes]
        names = [function.name for value in values for function in (value if isinstance(value, list) else [value])]
    else:  # Most operations call no function.
        return []
    called = [called_graph(graph, name) for name in names]
    return [function for function in called if function is not None]


def named_operations(graph: FunctionGraph, prefix: str = "") -> Iterator[tuple[str, tf.Operation]]:
    """Yields (name in HLO, operation) for operations of `graph` and of functions that it calls; see `called_graph`."""
    for operation in graph.get_operations():
        yield prefix + operation.name, operation
        for function in functions_of(graph, operation):
            yield from named_operations(function, scope_of_called(operation, prefix))


def scope_of_called(operation: tf.Operation, prefix: str) -> str:
    """Returns the prefix that names of a called function's operations have in HLO; see `named_operations`."""
    return f"{prefix}{operation.name}/" if operation.type in CALLS else ""


def without_inlining(name: str) -> str:
    """Returns the name of the operation in the name of an inlined instruction; see `named_operations`.

    XLA joins the names of the call and of the operation: `"call;call/Square" -> "call/Square"`.
    """
    return name.rsplit(";", 1)[-1]


def copy_operation(
    graph: tf.Graph, operation: tf.Operation, inputs: Sequence[tf.Tensor], attributes: Mapping[str, Any]
) -> tf.Operation:
    """Copies an operation into `graph` with other inputs. Uses the private `FuncGraph._create_op_internal`."""
    # The public `Graph.create_op` captures inputs in another way. Without it: use that.
    return graph._create_op_internal(
        operation.type,
        inputs,
        [output.dtype for output in operation.outputs],
        name=operation.name,
        attrs=attributes,
        op_def=operation.op_def,
    )


def set_attribute(operation: tf.Operation, name: str, value: Any) -> None:
    """Sets an attribute (`tf.compat.v1.AttrValue`) of an operation. Uses the private `Operation._set_attr`."""
    # Without it: create the operation in a block of `attributed`.
    operation._set_attr(name, value)


def place(operation: tf.Operation, device: str) -> None:
    """Places an operation of a graph on a device. Uses the private `Operation._set_device`; see `set_attribute`."""
    operation._set_device(device)


def attributed(attributes: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Sets attributes of all operations that the block creates; None clears one.

    Uses the private `Graph._attr_scope`.
    """
    # Without it: call `set_attribute` on each operation that the block has added.
    return _default()._attr_scope(attributes)


def attribute_now(name: str, graph: Any = None) -> Any:
    """Returns the attribute that new operations get, or None.

    Uses the private `Graph._attr_scope_map`; see `attributed`.
    """
    return (graph or _default())._attr_scope_map.get(name)


def has_attribute_now(name: str) -> bool:
    """Returns True if new operations get this attribute, even an empty one; see `attribute_now`."""
    return name in _default()._attr_scope_map


def leave_attribute(name: str, value: Any) -> None:
    """Sets an attribute of all later operations; None removes it. Uses the private `Graph._attr_scope_map`."""
    scope = _default()._attr_scope_map
    if value is None:
        scope.pop(name, None)
    else:
        scope[name] = value


def share_python_functions(graph: Any, outer: Any) -> None:
    """Makes `graph` keep its Python functions in the list of `outer`.

    Uses the private `Graph._py_funcs_used_in_graph`.
    """
    # The outermost graph keeps the functions of `tf.py_function` alive. Without it: do nothing if TensorFlow keeps them
    # alive in another way. A test that prints from a part of a program checks this.
    if not hasattr(outer, "_py_funcs_used_in_graph"):
        outer._py_funcs_used_in_graph = []
    graph._py_funcs_used_in_graph = outer._py_funcs_used_in_graph


def outermost_of(graph: FunctionGraph) -> tf.Graph:
    """Returns the graph that `outer_graph` falls back to. Uses the private `FuncGraph._fallback_outer_graph`."""
    return graph._fallback_outer_graph
