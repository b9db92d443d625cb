"""Canaries: graphs can be put together operation by operation, as the seam does it."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tensorflow_ipu._tensorflow import assembly, functions, graphs

SCALAR, NUMBER = tf.TensorSpec([], tf.float32), tf.TensorSpec([], tf.int32)


def default_graph() -> Any:
    return tf.compat.v1.get_default_graph()


def test_a_graph_that_was_put_together_is_called_with_what_it_captures():
    variable, small = tf.Variable(10.0), tf.constant(0.5)
    seen: dict[str, Any] = {}

    @tf.function(autograph=False)
    def program(x: Any, y: Any) -> Any:
        graph = seen["graph"] = assembly.AssembledGraph("sum")

        def body(one: Any) -> Any:
            assert default_graph() is graph
            assert graph.capture(y) is graph.capture(y)
            [found] = assembly.put(graph, "AddN", "sum", [[one, y, small]])
            variable.assign_add(found)
            variable.assign(2.0 * variable)
            return [found, one, assembly.number(graph, -7)]

        graph.trace(body, [SCALAR])
        function = functions.of_graph("__ipu_put_together", graph, called=False)
        captured = [outside for outside, _ in graph.captures]
        assert any(one is y for one in captured)
        return assembly.call(default_graph(), function, [x, *captured], [SCALAR, SCALAR, NUMBER])

    results = program(tf.constant(1.0), tf.constant(2.0))
    assert [one.numpy() for one in results] == [3.5, 1.0, -7]
    assert variable.numpy() == 27.0, "side effects come in their order"
    [operation] = [each for each in seen["graph"].get_operations() if each.type == "AddN"]
    assert any(__file__ == frame.filename for frame in operation.traceback)


def test_operations_that_are_put_into_graphs_of_users_follow_what_is_said_around():
    @tf.function(autograph=False)
    def program(x: Any) -> Any:
        mark = tf.compat.v1.AttrValue(s=b"here")
        before = tf.no_op()
        with tf.control_dependencies([before]), graphs.attributed({"_mark": mark}), tf.device("/device:CPU:0"):
            [found] = assembly.put(default_graph(), "Neg", "negative", [x])
        assert found.op.get_attr("_mark") == b"here"
        assert found.op.control_inputs == [before]
        assert found.device.endswith("CPU:0")
        return found

    assert program(tf.constant(3.0)).numpy() == -3.0


def test_a_traced_graph_captures_each_variable_once_and_tapes_in_it_know_them():
    variable, graph = tf.Variable([1.0, 2.0]), assembly.CapturingGraph("traced")

    def square() -> Any:
        with tf.control_dependencies([tf.no_op()]), tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * variable)
        return tape.gradient(loss, variable)

    graphs.trace_into(graph, square, ())
    [(outside, inside)] = graph.captures
    assert outside is variable.handle
    assert [one is inside for one in graph.inputs] == [True]
    assert not inside.op.control_inputs
    assert [one is variable for one in graph.variables] == [True]
    function = functions.of_graph("__ipu_traced", graph, called=False)
    spec = tf.TensorSpec([2], tf.float32)
    program: Any = tf.function(lambda: assembly.call(default_graph(), function, [variable.handle], [spec]))
    assert program()[0].numpy().tolist() == [2.0, 4.0]
    with graph.as_default():
        made = assembly.placeholder(graph, spec, "made")
    assert (made.op.type, made.shape, made.dtype) == ("Placeholder", [2], tf.float32)


def test_attributes_are_given_as_the_definition_has_them():
    graph = assembly.AssembledGraph("attributes")
    shape = tf.TensorShape([2, 3])
    with graph.as_default():
        [one] = assembly.put(
            graph, "Placeholder", "one", [], {"dtype": assembly.type_of(tf.bool), "shape": assembly.shape_of(shape)}
        )
        body = assembly.AssembledGraph("body")
        body.trace(lambda x: [x], [tf.TensorSpec(shape, tf.bool)])
        function = functions.of_graph("__ipu_same", body, called=False)
        graphs.hold_function(graph, function)
        attributes = {
            "f": assembly.function_of(function),
            "Tout": assembly.types_of([tf.bool]),
            "_output_shapes": assembly.shapes_of([shape]),
            "_mark": assembly.true(),
        }
        [called] = assembly.put(graph, "StatefulPartitionedCall", "called", [[one]], attributes)
    assert (one.dtype, one.shape, called.dtype) == (tf.bool, shape, tf.bool)
    assert called.op.get_attr("f").name == function.name.decode()
    assert called.op.get_attr("_output_shapes") == [shape.as_proto()]
    assert called.op.get_attr("_mark") is True
    with graph.as_default(), pytest.raises(Exception, match="NoSuchOperation"):
        assembly.put(graph, "NoSuchOperation", "nothing", [])
