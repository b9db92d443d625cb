"""How what names a feed gets into the graphs of a program: by one way, so that each loop and branch has it once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.framework import func_graph
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops import control_flow_v2_func_graphs

STATE_OP = "IpuFeedState"
_plain_call: Any = atomic_function.make_call_op_in_graph


def in_function(state: Any) -> Any:
    """Has the function around loops and branches capture the state, for those to capture it from there.

    What the gradient of a loop captures straight from eager execution, TensorFlow forgets among the loop's results. And
    a loop that captured a state from here and from there would have it twice, and lose what one of the two has become.
    """
    graph: Any = framework_ops.get_default_graph()
    while isinstance(graph, control_flow_v2_func_graphs.ControlFlowFuncGraph):
        graph = graph.outer_graph
    return graph.capture(state) if isinstance(graph, func_graph.FuncGraph) else state


def source_of(tensor: Any) -> Any:
    """Where a tensor comes from that functions captured one from the other: as far out as they did."""
    while hasattr(tensor, "graph") and isinstance(tensor.graph, func_graph.FuncGraph):
        outside = next((outside for outside, inside in tensor.graph.captures if inside is tensor), None)
        if outside is None:
            break
        tensor = outside
    return tensor


def in_condition() -> bool:
    """Whether what is being traced is the condition of a loop, which cannot assign to a state."""
    graph: Any = framework_ops.get_default_graph()
    while isinstance(graph, control_flow_v2_func_graphs.CondBranchFuncGraph):
        graph = graph.outer_graph
    return isinstance(graph, control_flow_v2_func_graphs.WhileCondFuncGraph)


def in_plain_graph() -> bool:
    """Whether what is being built is a graph for a session, outside of any function."""
    return not tf.executing_eagerly() and not isinstance(framework_ops.get_default_graph(), func_graph.FuncGraph)


def _call(function: Any, inputs: Sequence[Any], attributes: Any) -> Any:
    """Puts the call of a function into a graph, with the states that it captured captured as those of others are."""
    if isinstance(framework_ops.get_default_graph(), control_flow_v2_func_graphs.ControlFlowFuncGraph):
        inputs = [in_function(one) if _names_a_feed(one) else one for one in inputs]
    return _plain_call(function, inputs, attributes)


def _names_a_feed(tensor: Any) -> bool:
    if tensor.dtype != tf.resource:
        return False
    return tensor.op.type == STATE_OP if hasattr(tensor, "graph") else hasattr(tensor, "_ipu_feed")


atomic_function.make_call_op_in_graph = _call
