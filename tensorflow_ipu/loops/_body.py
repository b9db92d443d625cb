"""A loop's body as TensorFlow's loops want it: tensors in, tensors out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._tensorflow.autograph import user_code
from tensorflow_ipu.feeds import IPUInfeedQueue, body_arguments

if TYPE_CHECKING:
    from tensorflow_ipu._types import Nested, TensorLike


def carried_values(inputs: Nested) -> list[tf.Tensor]:
    """The first carried values as tensors, from a list, a tuple, one value, or None for none."""
    if inputs is None:
        return []
    values = inputs if isinstance(inputs, (list, tuple)) else [inputs]
    return [_tensor("`inputs`", value) for value in values]


class Body:
    """Calls the user's body with the carried values and the next element, and checks what it returns."""

    def __init__(
        self, body: Callable[..., Nested], carried: list[tf.Tensor], infeed_queue: IPUInfeedQueue | None
    ) -> None:
        """Takes a body whose signature was checked."""
        self._body = user_code(body)
        self._types = [value.dtype for value in carried]
        self._queue = infeed_queue

    def __call__(self, counter: tf.Tensor, *values: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Runs an iteration.

        Args:
          counter: A tensor to hand on, which the operations that the body returns are hung on besides.
          *values: The carried values.

        Returns:
          `counter`, then the carried values of the next iteration, as many as came in.
        """
        positional, named = ([], {}) if self._queue is None else body_arguments.take(self._queue)
        tensors, operations = _split(self._body(*values, *positional, **named))
        if self._types != [tensor.dtype for tensor in tensors]:
            raise TypeError(
                "Mismatch between input types and output types for loop body:"
                f" {[dtype.name for dtype in self._types]} vs {[tensor.dtype.name for tensor in tensors]}. The body must"
                " return a value for each carried one, of the same type"
            )
        if not operations:
            return (counter, *tensors)
        with tf.control_dependencies(operations):
            return tuple(tf.identity(tensor) for tensor in (counter, *tensors))


def _split(returned: Nested) -> tuple[list[tf.Tensor], list[tf.Operation]]:
    """The tensors and the operations that a body returned."""
    if returned is None:
        returned = []
    flat = list(returned) if isinstance(returned, (list, tuple)) else [returned]
    tensors: list[tf.Tensor] = []
    operations: list[tf.Operation] = []
    for value in flat:
        if isinstance(value, tf.Operation):
            operations.append(value)
        elif operations:
            raise ValueError(
                "IPU loop body must return zero or more Tensor values followed by zero or more Operations, but returned"
                f" {value!r} after an operation"
            )
        elif value is not None:
            tensors.append(_tensor("what `body` returns", value))
    return tensors, operations


def _tensor(where: str, value: TensorLike) -> tf.Tensor:
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError) as exc:
        raise TypeError(
            f"{where} must be a tensor, or a list or tuple of them, but holds {value!r}, which is no tensor: {exc}"
        ) from exc
