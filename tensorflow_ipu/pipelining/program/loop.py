"""A loop of a program, put together without what TensorFlow's own loops do for gradients and for structures of users."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import replicas
from tensorflow_ipu._tensorflow import assembly, functions, graphs

if TYPE_CHECKING:
    from tensorflow_ipu.pipelining.program.stash_buffers import Token

_numbers = itertools.count()


def run_while(
    condition: Callable[[tf.Tensor], tf.Tensor],
    body: Callable[[Sequence[tf.Tensor]], Sequence[tf.Tensor]],
    begin: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
    """Runs `body` as long as a condition holds: what `tf.while_loop` does, which takes Python 30 ms for 50 tensors."""
    number = next(_numbers)
    specs = [tf.TensorSpec(one.shape, one.dtype) for one in begin]
    iteration = assembly.AssembledGraph(f"body_{number}")
    check = assembly.AssembledGraph(f"condition_{number}")
    iteration.trace(lambda *values: body(values), specs)

    def checked(first: tf.Tensor, *_: tf.Tensor) -> list[tf.Tensor]:
        for outside, _inside in iteration.captures:  # Both take the same, in the same order.
            check.capture(outside)
        return [condition(first)]

    check.trace(checked, specs)
    for outside, _inside in check.captures:
        iteration.capture(outside)
    iteration.inputs = [*iteration.inputs[: len(specs)], *iteration.internal_captures]
    iteration.outputs += iteration.internal_captures
    around: Any = tf.compat.v1.get_default_graph()
    attributes = {
        "output_shapes": assembly.shapes_of([one.shape for one in iteration.outputs]),
        "_xla_propagate_compile_time_consts": assembly.true(),  # As TensorFlow has it: shapes are such.
    }
    for name, graph in (("cond", check), ("body", iteration)):
        function = functions.of_graph(f"__ipu_{graph.name}", graph, called=False)
        graphs.hold_function(around, function)
        attributes[name] = assembly.function_of(function)
    captured = replicas.with_states([outside for outside, _ in iteration.captures])
    found = assembly.put(around, "While", "while", [[*begin, *captured]], attributes)
    return found[: len(specs)]


def run_once(
    runs: tf.Tensor,
    behind: tf.Tensor,
    reads: Sequence[tf.Tensor],
    before: Sequence[tf.Tensor],
    body: Callable[[Token, Sequence[tf.Tensor], Sequence[tf.Tensor]], Sequence[tf.Tensor]],
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Runs `body` behind what `behind` depends on, or skips it. What it changes is changed in place."""
    number = next(_numbers)
    graph = assembly.AssembledGraph(f"once_{number}")
    with tf.name_scope("once") as scope:
        pass  # Operations of all parts have names of their own: by these, messages find the user's lines.

    def traced(here: tf.Tensor, *values: tf.Tensor) -> list[tf.Tensor]:
        old, given = values[: len(before)], values[len(before) :]
        with tf.name_scope(scope):
            return list(body(here, given, old))

    graph.trace(traced, [tf.TensorSpec(one.shape, one.dtype) for one in (behind, *before, *reads)])
    function: Any = functions.of_graph(f"__ipu_{graph.name}", graph, called=False)
    around: Any = tf.compat.v1.get_default_graph()
    graphs.hold_function(around, function)
    captured = replicas.with_states([*reads, *(outside for outside, _ in graph.captures)])
    attributes = {"f": assembly.function_of(function)}
    passed, *results = assembly.put(around, "IpuOnce", "IpuOnce", [runs, behind, list(before), captured], attributes)
    return passed, results
