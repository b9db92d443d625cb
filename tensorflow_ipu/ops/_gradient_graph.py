"""The graph of the backward pass of an outlined function, which computes anew what the compiler has to know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._tensorflow import graphs

if TYPE_CHECKING:
    from tensorflow_ipu._types import ShapeLike

# Of static shapes: what they are of need not be there.
_OF_SHAPES = ("Rank", "Shape", "ShapeN", "Size")


class GradientGraph(graphs.FunctionGraph):
    """A graph whose operations use tensors of another one, the forward pass.

    What that computes from constants and shapes alone, such as the order of dimensions that `tf.transpose` makes up, has a
    copy here: XLA asks for its value, which the result of a call has not.
    """

    def __init__(self, name: str, forward: graphs.FunctionGraph) -> None:
        """Begins with nothing.

        Args:
          name: The name of its function.
          forward: The graph of the forward pass.
        """
        super().__init__(name)
        self._forward = forward
        self._copies: dict[str, tf.Tensor] = {}

    def capture(self, tensor: tf.Tensor, name: str | None = None, shape: ShapeLike | None = None) -> tf.Tensor:
        if getattr(tensor, "graph", None) is self._forward and self._is_known(tensor):
            return self._copy(tensor)
        return super().capture(tensor, name=name, shape=shape)

    def _is_known(self, tensor: tf.Tensor) -> bool:
        """Whether only constants and shapes are behind a tensor of integers or booleans."""
        seen: set[str] = set()
        waiting = [tensor]
        while waiting:
            one = waiting.pop()
            if one.name in seen:
                continue
            seen.add(one.name)
            operation = one.op
            if operation.type == "Const" or _value_of_shape(one) is not None:
                continue
            if not (one.dtype.is_integer or one.dtype.is_bool) or not operation.inputs or _does_more(operation):
                return False
            waiting += operation.inputs
        return True

    def _copy(self, tensor: tf.Tensor) -> tf.Tensor:
        waiting = [tensor]
        while waiting:
            top = waiting[-1]
            missing = [each for each in top.op.inputs if each.name not in self._copies]
            value = _value_of_shape(top)
            if top.name in self._copies:
                waiting.pop()
            elif value is not None:
                with self.as_default(), tf.control_dependencies(None):
                    self._copies[top.name] = tf.constant(value, top.dtype)
            elif missing:
                waiting += missing
            else:
                with self.as_default(), tf.control_dependencies(None):
                    inputs = [self._copies[each.name] for each in top.op.inputs]
                    attributes = {key: each for key, each in top.op.node_def.attr.items() if key != "_class"}
                    copied = graphs.copy_operation(self, top.op, inputs, attributes)
                for old, new in zip(top.op.outputs, copied.outputs, strict=True):
                    self._copies[old.name] = new
        return self._copies[tensor.name]


def _value_of_shape(tensor: tf.Tensor) -> Any:
    """What a static shape says; None for what says something else."""
    return tf.get_static_value(tensor) if tensor.op.type in _OF_SHAPES else None


def _does_more(operation: tf.Operation) -> bool:
    """Whether an operation does anything but compute its results, or calls functions."""
    attributes = operation.node_def.attr.values()
    return operation.op_def.is_stateful or any(each.HasField("func") or each.list.func for each in attributes)
