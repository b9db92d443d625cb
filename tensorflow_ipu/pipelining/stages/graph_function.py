"""A graph that was traced, as a function of tensors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._tensorflow import definitions

if TYPE_CHECKING:
    from tensorflow_ipu._tensorflow import graphs

_numbers = itertools.count()


class GraphFunction:
    """A graph that can be called any number of times, wherever its captured tensors can be used."""

    def __init__(self, graph: graphs.FunctionGraph, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor]) -> None:
        """Makes a function of the graph.

        Args:
          graph: The graph.
          inputs: Those of its placeholders that calls give values for.
          outputs: Those of its tensors that calls return.
        """
        graph.inputs = [*inputs, *graph.internal_captures]
        graph.outputs = list(outputs)
        self._captured = list(graph.external_captures)
        self._function = definitions.of_graph(f"__ipu_{graph.name}_{next(_numbers)}", graph)

    def __call__(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The outputs for values of the inputs."""
        return list(self._function.call_flat(*values, *self._captured))

    def elsewhere(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The outputs, outside of the program: with zeros for those captured tensors that are there alone."""
        captured: list[tf.Tensor] = [
            tf.zeros(one.shape, one.dtype) if hasattr(one, "graph") else one for one in self._captured
        ]
        return list(self._function.call_flat(*values, *captured))
