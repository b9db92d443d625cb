"""The graphs of stages, and what they take and return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._tensorflow import graphs

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested, ShapeLike

# A tensor that was made outside of the program is a constant of a stage if it has up to so many elements, as with
# TensorFlow's functions; else all passes of the stage take it from there.
_LARGEST_CONSTANT = 128


def flat_tensors(structure: Nested) -> list[Any]:
    """The tensors of a structure, without its Nones."""
    return [tensor for tensor in tf.nest.flatten(structure) if tensor is not None]


def spec_of(tensor: tf.Tensor | tf.Variable) -> tf.TensorSpec:
    """The shape and type of a tensor."""
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def placeholder(graph: tf.Graph, spec: tf.TensorSpec, name: str) -> tf.Tensor:
    """A placeholder of a graph of a function, which is no input of it yet, and waits for nothing."""
    with graph.as_default(), tf.control_dependencies(None):
        return tf.compat.v1.placeholder(spec.dtype, spec.shape, name)


class StageGraph(graphs.FunctionGraph):
    """A graph that takes small tensors from outside of the program as its constants, and does not count them as captured."""

    runs_in_loop = True  # The one over the micro-batches; see `graphs.in_loop`.

    def __init__(self, name: str) -> None:
        """Makes an empty graph."""
        super().__init__(name)
        # Each tensor, so that its id stays its own, with its constant.
        self._taken: dict[int, tuple[tf.Tensor, tf.Tensor]] = {}
        self.used_micro_batch: tf.Tensor | None = None

    @property
    def ipu_micro_batch(self) -> tf.Tensor:
        """The number of the micro-batch, an input of the graph once it was asked for."""
        number = self.used_micro_batch
        if number is None:
            number = self.used_micro_batch = placeholder(self, tf.TensorSpec([], tf.int32), "micro_batch")
        return number

    def capture(self, tensor: tf.Tensor, name: str | None = None, shape: ShapeLike | None = None) -> tf.Tensor:
        """Gives a tensor of another graph, or of none, as one of this graph."""
        if not _is_small_value(tensor):
            return super().capture(tensor, name, shape)
        if id(tensor) not in self._taken:
            with self.as_default(), tf.control_dependencies(None):
                self._taken[id(tensor)] = tensor, tf.constant(tensor.numpy(), tensor.dtype, tensor.shape)
        return self._taken[id(tensor)][1]


def check_static(tensor: tf.Tensor) -> None:
    """Refuses a tensor that an optimizer uses and whose shape is not known."""
    if not tensor.shape.is_fully_defined():
        raise ValueError(
            f"`optimizer_function` has an optimizer use a tensor of shape {tensor.shape} of the pipeline's last stage, and"
            " such a tensor needs a static shape: state it with `tf.ensure_shape`"
        )


def is_of_stage(graph: object) -> bool:
    """Whether a graph is that of a stage."""
    return isinstance(graph, StageGraph)


def _is_small_value(tensor: tf.Tensor) -> bool:
    """Whether a tensor has a value already, of few enough elements for a constant."""
    if hasattr(tensor, "graph") or tensor.dtype in (tf.resource, tf.variant, tf.string):
        return False
    return tensor.shape.num_elements() <= _LARGEST_CONSTANT


def as_arguments(outputs: Nested) -> tuple[list[Nested], dict[str, Nested]]:
    """What a stage returned, as the arguments of the next one: by position, or by name where it is a dict."""
    if outputs is None:
        return [], {}
    if isinstance(outputs, Mapping) and all(isinstance(key, str) for key in outputs):
        return [], dict(outputs)
    if isinstance(outputs, (list, tuple)):
        return [one for one in outputs if one is not None], {}
    return [outputs], {}
