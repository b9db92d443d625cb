"""The weight update of a pipeline as a function of the accumulated gradients, with what the last stage hands to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._tensorflow import assembly, graphs
from tensorflow_ipu.pipelining.stages.graph_function import GraphFunction
from tensorflow_ipu.pipelining.stages.tracing import StageTrace, check_static, spec_of

if TYPE_CHECKING:
    from tensorflow_ipu._types import ShapeLike


class _UpdateGraph(assembly.CapturingGraph):
    """A graph that may use tensors of the last stage's graph: they become its inputs.

    Attributes:
      handed: Those tensors, in the order of `placeholders`.
    """

    def __init__(self, trace: StageTrace) -> None:
        """Makes an empty graph, for an update behind the stage of `trace`."""
        super().__init__("pipeline_update")
        self._trace = trace
        self._here: dict[int, tf.Tensor] = {}
        self.handed: list[tf.Tensor] = []
        self.placeholders: list[tf.Tensor] = []

    def capture(self, tensor: tf.Tensor, name: str | None = None, shape: ShapeLike | None = None) -> tf.Tensor:
        """Gives a tensor of another graph as one of this graph."""
        if getattr(tensor, "graph", None) is not self._trace.graph:
            return super().capture(tensor, name, shape)
        outside = self._trace.outside(tensor)
        if outside is not None:
            return super().capture(outside, name, shape)
        if id(tensor) not in self._here:
            check_static(tensor)
            self._here[id(tensor)] = assembly.placeholder(self, spec_of(tensor), "handed")
            self.handed.append(tensor)
            self.placeholders.append(self._here[id(tensor)])
        return self._here[id(tensor)]


class WeightUpdate:
    """An update that was traced.

    Attributes:
      handed: The tensors of the last stage's graph that it uses.
    """

    def __init__(
        self, apply: Callable[[Sequence[tf.Tensor]], None], gradients: Sequence[tf.TensorSpec], trace: StageTrace
    ) -> None:
        """Traces an update.

        Args:
          apply: From the accumulated gradients to the operations that update.
          gradients: Their specs.
          trace: The stage in which the optimizer was made.
        """
        graph = _UpdateGraph(trace)
        graphs.trace_into(graph, lambda *given: apply(given), gradients)
        self.handed = graph.handed
        self._placeholders = [*graph.inputs[: len(gradients)], *graph.placeholders]
        self._function = GraphFunction(graph, self._placeholders, [])

    def alone(self) -> tuple[Callable[..., list[tf.Tensor]], list[tf.TensorSpec]]:
        """The update as a function of gradients and of what is handed to it, to be read and not run; its arguments."""
        specs = [spec_of(one) for one in self._placeholders]
        return lambda *values: self._function.elsewhere(values), specs

    def __call__(self, gradients: Sequence[tf.Tensor], handed: Sequence[tf.Tensor]) -> None:
        """Updates the weights by gradients, with the values that `handed` has."""
        self._function([*gradients, *handed])
