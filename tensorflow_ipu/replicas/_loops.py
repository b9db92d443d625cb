"""Whether a graph is a loop's body, or inside of one."""

from __future__ import annotations

from typing import Any

from tensorflow.python.ops import control_flow_v2_func_graphs


def in_loop(graph: Any) -> bool:
    """Whether operations of the graph run in a loop, as far as is known while it is built."""
    while graph is not None:
        if isinstance(graph, control_flow_v2_func_graphs.WhileBodyFuncGraph):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False
