"""A part of a program that is traced as a function, and run once or skipped by one operation, `IpuOnce`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import replicas
from tensorflow_ipu._tensorflow import assembly, definitions, graphs

if TYPE_CHECKING:
    from tensorflow_ipu.pipelining.program.rings import Token

_numbers = itertools.count()


def run_once(
    runs: tf.Tensor,
    behind: tf.Tensor,
    reads: Sequence[tf.Tensor],
    before: Sequence[tf.Tensor],
    body: Callable[[Token, Sequence[tf.Tensor], Sequence[tf.Tensor]], Sequence[tf.Tensor]],
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Runs `body` behind what `behind` depends on, or skips it. What it changes is changed in place.

    Args:
      runs: A bool scalar: whether it is run. A constant where it is run in any case.
      behind: An int32 scalar that is 0.
      reads: Tensors that `body` uses.
      before: What the results take the place of, with their shapes and types. They are the results where it is skipped.
      body: From an int32 scalar that is 0, and not known before the part begins, `reads` and `before`, to the results.

    Returns:
      An int32 scalar that is 0, known once the part has been run; the results.
    """
    number = next(_numbers)
    graph = assembly.AssembledGraph(f"once_{number}")
    with tf.name_scope("once") as scope:
        pass  # Operations of all parts have names of their own: by these, messages find the user's lines.

    def traced(here: tf.Tensor, *values: tf.Tensor) -> list[tf.Tensor]:
        old, given = values[: len(before)], values[len(before) :]
        with tf.name_scope(scope):
            return list(body(here, given, old))

    graph.trace(traced, [tf.TensorSpec(one.shape, one.dtype) for one in (behind, *before, *reads)])
    function: Any = definitions.of_graph(f"__ipu_{graph.name}", graph, called=False)
    around: Any = tf.compat.v1.get_default_graph()
    graphs.hold_function(around, function)
    captured = replicas.with_states([*reads, *(outside for outside, _ in graph.captures)])
    attributes = {"f": assembly.function_of(function)}
    passed, *results = assembly.put(around, "IpuOnce", "IpuOnce", [runs, behind, list(before), captured], attributes)
    return passed, results
