"""A graph that was traced, as a function of tensors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tensorflow_ipu import replicas
from tensorflow_ipu._tensorflow import assembly, definitions, graphs

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
        self._specs = [tf.TensorSpec(one.shape, one.dtype) for one in outputs]
        self._captured = list(graph.external_captures)
        self._function: Any = definitions.of_graph(f"__ipu_{graph.name}_{next(_numbers)}", graph, called=False)

    def __call__(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The outputs for values of the inputs, in the function that is being traced."""
        return self._called([*values, *self._captured])

    def elsewhere(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The outputs, outside of the program: with zeros for those captured tensors that are there alone."""
        captured: list[tf.Tensor] = [
            tf.zeros(one.shape, one.dtype) if hasattr(one, "graph") else one for one in self._captured
        ]
        return self._called([*values, *captured])

    def _called(self, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        graph = tf.compat.v1.get_default_graph()
        return assembly.call(graph, self._function, replicas.with_states(inputs), self._specs)
