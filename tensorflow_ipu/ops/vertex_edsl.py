"""Expressions of one element of each input, as `custom_ops.codelet_expression_op` takes them.

They have what those for a tile have: `+`, `-`, `*` and `abs`, of inputs and numbers, whose types mix as in C++.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._base.checks import is_number

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import TensorLike

__all__ = [
    "VertexExpression",
    "constant",
]


class VertexExpression:
    """What an expression is made of: an input, a number, or what operators made of those.

    Attributes:
      value: The tensor behind it.
    """

    def __init__(self, value: tf.Tensor) -> None:
        """Wraps a tensor."""
        self.value = value

    def __add__(self, other: Operand) -> VertexExpression:
        return _combined(tf.add, self, other)

    def __radd__(self, other: Operand) -> VertexExpression:
        return _combined(tf.add, other, self)

    def __sub__(self, other: Operand) -> VertexExpression:
        return _combined(tf.subtract, self, other)

    def __rsub__(self, other: Operand) -> VertexExpression:
        return _combined(tf.subtract, other, self)

    def __mul__(self, other: Operand) -> VertexExpression:
        return _combined(tf.multiply, self, other)

    def __rmul__(self, other: Operand) -> VertexExpression:
        return _combined(tf.multiply, other, self)

    def __abs__(self) -> VertexExpression:
        return VertexExpression(tf.abs(self.value))

    def __neg__(self) -> VertexExpression:
        return VertexExpression(tf.negative(self.value))

    def __invert__(self) -> VertexExpression:
        return -self  # As in the SDK.

    def __pos__(self) -> VertexExpression:
        return self

    def __bool__(self) -> bool:
        raise TypeError(
            "a vertex expression is neither true nor false while it is traced: it has no `if`, `and`, `or` or `not`"
        )


Operand = VertexExpression | int | float


def constant(value: float) -> VertexExpression:
    """Creates a number in an expression: a Python int is an int32 there, and a float a float32.

    Raises:
      TypeError: It is no number.
    """
    if not is_number(value):
        raise TypeError(f"`value` must be an int or a float, but is {value!r}")
    return VertexExpression(tf.constant(value, tf.int32 if isinstance(value, int) else tf.float32))


def _combined(operator: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], left: Operand, right: Operand) -> VertexExpression:
    first, second = _operand(left, right), _operand(right, left)
    common = _common(first.dtype, second.dtype)
    return VertexExpression(operator(tf.cast(first, common), tf.cast(second, common)))


def _operand(operand: Operand, neighbour: Operand) -> tf.Tensor:
    """Returns the tensor of an operand; a bare float takes the type of a half beside it, which it would make a float."""
    if isinstance(operand, VertexExpression):
        return operand.value
    number = constant(operand).value
    beside = neighbour.value.dtype if isinstance(neighbour, VertexExpression) else number.dtype
    return tf.cast(number, beside) if beside.is_floating else number


def _common(left: tf.DType, right: tf.DType) -> tf.DType:
    """Returns the type that C++ computes two numbers in."""
    if left.is_floating is not right.is_floating:
        return left if left.is_floating else right
    return left if left.size >= right.size else right


def codelet_expression_op(vertex_expression: Callable[..., Any], *args: TensorLike) -> tf.Tensor:
    """Computes an expression of one element of each input, for all elements, as code for tiles does, without a gradient.

    `vertex_expression` is a function of as many expressions as there are inputs, tensors whose shapes broadcast, that
    returns one. It has the operators `+`, `-`, `*` and `abs`, and numbers: see `vertex_edsl`. The result has the first
    input's type.

    Raises:
      LookupError: A gradient is taken through it.
      TypeError: The expression uses what it has not, or is none.
      ValueError: There is no input, or shapes do not broadcast.
    """
    if not args:
        raise ValueError("`args` is empty; give the tensors that `vertex_expression` is computed of")
    values = [tf.convert_to_tensor(value) for value in args]
    try:
        shape = functools.reduce(tf.broadcast_static_shape, [value.shape for value in values])
    except ValueError as exc:
        shapes = ", ".join(str(value.shape) for value in values)
        raise ValueError(f"`args` have the shapes {shapes}, which do not broadcast") from exc

    @tf.custom_gradient
    def computed(*inputs: tf.Tensor) -> Any:
        try:
            expression = vertex_expression(*(VertexExpression(value) for value in inputs))
        except TypeError as exc:
            raise TypeError(f"`vertex_expression` has +, -, *, `abs` and numbers alone: {exc}") from exc
        if not isinstance(expression, VertexExpression):
            raise TypeError(
                f"`vertex_expression` must return an expression of what it is given, but returns {expression!r}"
            )
        result = tf.cast(expression.value, inputs[0].dtype)
        if not shape.is_fully_defined() or result.shape != shape:  # It need not use all inputs.
            result = tf.broadcast_to(result, functools.reduce(tf.broadcast_dynamic_shape, map(tf.shape, inputs)))

        def gradient(*_: tf.Tensor) -> Any:
            raise LookupError(
                "`codelet_expression_op` has no gradient, on the machine either: write the expression with TensorFlow's"
                " operations, which XLA fuses, or end the gradient by `tf.stop_gradient`"
            )

        return result, gradient

    return computed(*values)
