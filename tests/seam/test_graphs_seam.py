"""Canaries: graphs of functions behave as the seam expects."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensorflow_ipu._tensorflow import functions, graphs

SCALAR, NUMBER = tf.TensorSpec([], tf.float32), tf.TensorSpec([], tf.int32)


def default_graph() -> Any:
    return tf.compat.v1.get_default_graph()


def test_the_graphs_of_a_trace_are_known_from_the_innermost_out():
    seen: dict[str, Any] = {}

    def look(name: str) -> None:
        graph: Any = default_graph()
        seen[name] = (
            graphs.is_function(graph),
            len(list(graphs.being_traced())),
            graphs.in_loop(graph),
            graphs.in_condition(),
            graphs.is_control_flow(graph),
            graphs.outside_control_flow() is seen.get("graph", graph),
        )

    @tf.function(autograph=False)
    def program(n: Any) -> Any:
        seen["graph"] = default_graph()
        look("outside")

        def condition(i: Any) -> Any:
            look("condition")
            return i < n

        def body(i: Any) -> Any:
            look("body")
            return tf.cond(i > 0, lambda: (look("branch"), i + 1)[1], lambda: i + 1)

        assert len(list(graphs.around(default_graph()))) == 2
        return tf.while_loop(condition, body, [0])

    program.get_concrete_function(NUMBER)
    assert not graphs.is_function(tf.Graph())
    assert seen["outside"] == (True, 1, False, False, False, True)
    assert seen["condition"] == (True, 2, False, True, True, True)
    assert seen["body"] == (True, 2, True, False, True, True)
    assert seen["branch"] == (True, 3, True, False, True, True)


def test_a_graph_knows_that_it_will_be_compiled():
    contexts: list[Any] = []

    @tf.function
    def inner(x: Any) -> Any:
        contexts.append(graphs.is_compiled(default_graph()))
        contexts.append(graphs.compilation_context(default_graph(), Apart))
        return x

    class Apart(graphs.XlaContext):
        def RequiresUniqueFunctionRetracing(self) -> Any:  # noqa: N802
            return True

    context = Apart()

    @tf.function
    def outer(x: Any) -> Any:
        with graphs.in_compilation_context(context):
            assert graphs.compilation_context(default_graph(), Apart) is context
            compiled = inner(x)
        return compiled + inner(x)

    outer.get_concrete_function(SCALAR)
    # A function that is traced in the context has another trace outside of it.
    assert contexts == [True, context, False, None]


def test_operations_of_called_functions_are_found_by_their_names_in_hlo():
    inner = tf.function(lambda x: tf.square(x))
    program: Any = tf.function(lambda x: inner(x) + 1.0).get_concrete_function(SCALAR)
    names = {name: operation.type for name, operation in graphs.named_operations(program.graph)}
    [call] = [operation for operation in program.graph.get_operations() if operation.type in graphs.CALLS]
    [called] = graphs.functions_of(program.graph, call)
    assert "Square" in [operation.type for operation in called.get_operations()]
    assert names[graphs.scope_of_called(call, "") + "Square"] == "Square"
    assert graphs.without_inlining(f"{call.name};{call.name}/Square") == f"{call.name}/Square"


def test_functions_that_a_graph_calls_are_found():
    inner = tf.function(lambda x: x + 1.0)
    program: Any = tf.function(lambda x: inner(x) * 2.0).get_concrete_function(SCALAR)
    [name] = graphs.functions_in(program.graph)
    assert graphs.function_named(program.graph, name).name.decode() == name
    inside = graphs.called_graph(program.graph, name)
    assert inside is not None
    assert graphs.graphs_of(program) == [program.graph, inside]
    assert graphs.called_graph(program.graph, "of no function") is None
    assert graphs.enclosing(inside) is program.graph
    assert graphs.enclosing(tf.Graph()) is None
    second_graph = graphs.FunctionGraph("other")
    graphs.hold_function(second_graph, graphs.function_named(program.graph, name))
    assert name in graphs.functions_in(second_graph)


def test_a_function_is_traced_into_a_graph_of_ours_that_sees_captures_and_operations():
    seen: list[str] = []

    class Watching(graphs.FunctionGraph):
        def capture(self, tensor: Any, name: Any = None, shape: Any = None) -> Any:
            seen.append("captured")
            return super().capture(tensor, name, shape)

        def _create_op_internal(self, op_type: str, *args: Any, **kwargs: Any) -> Any:
            seen.append(op_type)
            return super()._create_op_internal(op_type, *args, **kwargs)

    outside = tf.random.stateless_normal([1000], [1, 2])
    graph = Watching("watching")
    graphs.trace_into(graph, lambda x: x + outside, (SCALAR,))
    assert "captured" in seen
    assert "AddV2" in seen
    assert len(graph.inputs) == 2
    assert len(graph.outputs) == 1
    assert isinstance(graphs.outermost_of(graph), tf.Graph)


def test_side_effects_of_a_block_must_run_in_order():
    variable = tf.Variable(1.0)

    @tf.function(autograph=False)
    def program() -> Any:
        with graphs.in_order_of_side_effects() as order:
            variable.assign_add(1.0)
            variable.assign(10.0 * variable)
        assert {operation.type for operation in order.ops_which_must_run} >= {"AssignAddVariableOp", "AssignVariableOp"}
        return tf.identity(0.0)

    program()
    assert variable.numpy() == 20.0


def test_inputs_and_calls_that_only_read_are_known():
    read, written = tf.Variable(1.0), tf.Variable(2.0)
    program: Any = tf.function(lambda: written.assign_add(read)).get_concrete_function()
    handles = [outer for outer, _ in program.graph.captures]
    assert [handles[index] is read.handle for index in graphs.read_only_inputs(program.graph)] == [True]
    graphs.declare_read_only("ReadVariableOp")  # It is declared already.
    assert graphs.definition_of("ReadVariableOp").name == "ReadVariableOp"
    assert graphs.definition_of("NoSuchOperation") is None
    graph = graphs.FunctionGraph("reading")
    with graph.as_default():
        handle = graph.capture(read.handle)
        operation = tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(2.0))
        assert graphs.read_only_inputs(graph) == []
        graphs.mark_read_only(operation, [0])
        assert graphs.read_only_inputs(graph) == [0]


def test_operations_are_copied_placed_and_marked():
    value = tf.compat.v1.AttrValue(s=b"here")

    @tf.function(autograph=False)
    def program(x: Any) -> Any:
        graph = default_graph()
        with graphs.attributed({"_mark": value}):
            assert graphs.has_attribute_now("_mark")
            assert graphs.attribute_now("_mark").s == b"here"
            total = x + 1.0
        assert not graphs.has_attribute_now("_mark")
        graphs.leave_attribute("_left", value)
        marked = total * 2.0
        graphs.leave_attribute("_left", None)
        assert graphs.attribute_now("_left") is None
        attributes = {"T": marked.op.node_def.attr["T"]}
        copied = graphs.copy_operation(graph, marked.op, [x, x], attributes).outputs[0]
        graphs.set_attribute(copied.op, "_set", value)
        graphs.place(copied.op, "/device:CPU:0")
        assert total.op.get_attr("_mark") == b"here"
        assert marked.op.get_attr("_left") == b"here"
        assert copied.op.get_attr("_set") == b"here"
        assert copied.op.device == "/device:CPU:0"
        assert copied.op.type == marked.op.type
        return copied

    assert program(tf.constant(3.0)).numpy() == 9.0


def test_graphs_share_python_functions_and_replace_inputs():
    inner, outer = tf.Graph(), tf.Graph()
    graphs.share_python_functions(inner, outer)
    with inner.as_default():
        tf.numpy_function(lambda: 1.0, [], tf.float64)
    assert inner._py_funcs_used_in_graph is outer._py_funcs_used_in_graph  # pyright: ignore[reportAttributeAccessIssue]
    assert len(outer._py_funcs_used_in_graph) == 1  # pyright: ignore[reportAttributeAccessIssue]

    @tf.function
    def function(x: tf.Tensor) -> tf.Tensor:
        doubled = tf.identity(x) * 2.0
        graphs.replace_input(doubled.op, 0, x + 1.0)
        return doubled

    assert function(tf.constant(3.0)).numpy() == 8.0


def test_the_graph_of_what_a_loop_runs_is_taken_for_one():
    seen: list[bool] = []
    names: list[str] = []

    @tf.function(autograph=False)
    def program(x: Any) -> Any:
        outside = default_graph()
        with tf.name_scope("scope"):
            graph = graphs.LoopBodyGraph("part")
        with graph.as_default():
            seen.extend([graphs.in_loop(graph), graphs.is_control_flow(graph), graphs.in_condition()])
            seen.append(graphs.outside_control_flow() is outside)
            names.append(tf.identity(x).op.name)
        return x

    program.get_concrete_function(SCALAR)
    assert seen == [True, True, False, True]
    assert names == ["scope/Identity"]


def test_the_graph_of_the_process_is_not_being_built():
    built: list[list[Any]] = []

    @tf.function
    def function() -> None:
        built.append(graphs.being_built())

    function()
    assert [graphs.is_function(graph) for graph in built[0]] == [True]
    assert graphs.being_built() == []
    with tf.Graph().as_default() as graph:
        assert graphs.being_built() == [graph]


def test_branches_are_told_from_loops_and_from_graphs_that_run_in_one():
    class Stage(graphs.FunctionGraph):
        runs_in_loop = True

    flags: list[tuple[bool, bool]] = []

    def note(x: Any) -> Any:
        graph = default_graph()
        flags.append((graphs.is_branch(graph), graphs.in_loop(graph)))
        return x

    @tf.function(autograph=False)
    def function(x: tf.Tensor) -> tf.Tensor:
        x = tf.cond(x > 0.0, lambda: note(x), lambda: x)
        (x,) = tf.while_loop(lambda x: x > 1.0, lambda x: (note(x) - 1.0,), (x,))
        return note(x)

    function(tf.constant(1.0))
    assert [branch for branch, _ in flags] == [True, False, False]
    flags.clear()
    with Stage("stage").as_default():
        note(None)
        tf.cond(tf.ones([]) > 0, lambda: note(tf.constant(1)), lambda: note(tf.constant(1)))
    note(None)
    assert [in_loop for _, in_loop in flags] == [True, True, True, False]


def test_a_traced_graph_is_called_by_its_name_with_what_it_captures_and_its_later_inputs():
    variable = tf.Variable(10.0)

    @tf.function(autograph=False)
    def program(x: Any, y: Any) -> Any:
        graph = graphs.LoopBodyGraph("sum")
        later = []

        def body(term: Any) -> Any:
            later.append(tf.compat.v1.placeholder(tf.float32, []))
            variable.assign_add(term + y + later[0])
            variable.assign(2.0 * variable)
            return [term * y]

        graphs.trace_into(graph, body, (SCALAR,))
        graph.inputs = [graph.inputs[0], *later, *graph.internal_captures]
        function = functions.of_graph("__ipu_traced", graph, called=False)
        graphs.hold_function(default_graph(), function)
        inputs = [x, tf.constant(0.5), *graph.external_captures]
        [product] = tf.raw_ops.StatefulPartitionedCall(args=inputs, Tout=[tf.float32], f=function.name)
        return product

    assert program(tf.constant(1.5), tf.constant(2.0)).numpy() == 3.0
    assert variable.numpy() == 28.0, "side effects run in order"
