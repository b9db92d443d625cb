"""Elementwise expressions for `custom_ops.codelet_expression_op`.

As on a tile, they consist of inputs, literal numbers, `+`, `-`, `*` and `abs`. Mixed types are promoted as in C++.
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
    """An expression: an input, a literal number, or the result of an operator.

    Attributes:
      value: The tensor that the expression computes.
    """

    def __init__(self, value: tf.Tensor) -> None:
        self.value = value

    def __add__(self, operand: Operand) -> VertexExpression:
        return _combined(tf.add, self, operand)

    def __radd__(self, operand: Operand) -> VertexExpression:
        return _combined(tf.add, operand, self)

    def __sub__(self, operand: Operand) -> VertexExpression:
        return _combined(tf.subtract, self, operand)

    def __rsub__(self, operand: Operand) -> VertexExpression:
        return _combined(tf.subtract, operand, self)

    def __mul__(self, operand: Operand) -> VertexExpression:
        return _combined(tf.multiply, self, operand)

    def __rmul__(self, operand: Operand) -> VertexExpression:
        return _combined(tf.multiply, operand, self)

    def __abs__(self) -> VertexExpression:
        return VertexExpression(tf.abs(self.value))

    def __neg__(self) -> VertexExpression:
        return VertexExpression(tf.negative(self.value))

    def __invert__(self) -> VertexExpression:
        return -self  # In the SDK, `~x` is `-x`.

    def __pos__(self) -> VertexExpression:
        return self

    def __bool__(self) -> bool:
        raise TypeError(
            "a vertex expression is neither true nor false while it is traced: it has no `if`, `and`, `or` or `not`"
        )


Operand = VertexExpression | int | float


def constant(value: float) -> VertexExpression:
    """Creates a literal number in an expression: int32 for a Python int, float32 for a float.

    Raises:
      TypeError: `value` is neither an int nor a float.
    """
    if not is_number(value):
        raise TypeError(f"`value` must be an int or a float, but is {value!r}")
    return VertexExpression(tf.constant(value, tf.int32 if isinstance(value, int) else tf.float32))


def _combined(operator: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], lhs: Operand, rhs: Operand) -> VertexExpression:
    first, second = _operand(lhs, rhs), _operand(rhs, lhs)
    common = _common(first.dtype, second.dtype)
    return VertexExpression(operator(tf.cast(first, common), tf.cast(second, common)))


def _operand(operand: Operand, neighbour: Operand) -> tf.Tensor:
    """Returns the tensor of an operand. A literal float next to a half becomes a half, instead of promoting the half."""
    if isinstance(operand, VertexExpression):
        return operand.value
    number = constant(operand).value
    neighbour_dtype = neighbour.value.dtype if isinstance(neighbour, VertexExpression) else number.dtype
    return tf.cast(number, neighbour_dtype) if neighbour_dtype.is_floating else number


def _common(lhs: tf.DType, rhs: tf.DType) -> tf.DType:
    """Returns the dtype to which C++ promotes two operands."""
    if lhs.is_floating is not rhs.is_floating:
        return lhs if lhs.is_floating else rhs
    return lhs if lhs.size >= rhs.size else rhs


def codelet_expression_op(vertex_expression: Callable[..., Any], *args: TensorLike) -> tf.Tensor:
    """Computes an expression elementwise, as a codelet on tiles does. It has no gradient.

    `vertex_expression` is a function of `VertexExpression`s, one for each tensor of `args`. It returns an expression of
    them, made of `+`, `-`, `*`, `abs` and literal numbers: see `vertex_edsl`. The shapes of `args` broadcast. The result
    has the dtype of the first tensor.

    Raises:
      LookupError: A gradient is taken through the operation.
      TypeError: The expression uses unsupported operators, or the function returns something else.
      ValueError: `args` is empty, or its shapes do not broadcast.
    """
    if not args:
        raise ValueError("`args` is empty; pass the tensors that `vertex_expression` is computed from")
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
            raise TypeError(f"`vertex_expression` may only use +, -, *, `abs` and literal numbers: {exc}") from exc
        if not isinstance(expression, VertexExpression):
            raise TypeError(
                f"`vertex_expression` must return an expression of its arguments, but returns {expression!r}"
            )
        result = tf.cast(expression.value, inputs[0].dtype)
        if not shape.is_fully_defined() or result.shape != shape:  # The expression may not use all inputs.
            result = tf.broadcast_to(result, functools.reduce(tf.broadcast_dynamic_shape, map(tf.shape, inputs)))

        def gradient(*_: tf.Tensor) -> Any:
            raise LookupError(
                "`codelet_expression_op` has no gradient, on the machine either: write the expression with TensorFlow's"
                " operations, which XLA fuses, or end the gradient by `tf.stop_gradient`"
            )

        return result, gradient

    return computed(*values)
