"""Loops that run on the device: `while_loop` and `repeat`, whose bodies may take elements of an infeed."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from tensorflow_ipu._base.checks import check_bool
from tensorflow_ipu._tensorflow.autograph import user_code
from tensorflow_ipu.feeds import IPUInfeedQueue, IPUIterator
from tensorflow_ipu.feeds.infeed import expected, take
from tensorflow_ipu.feeds.iterator import queue_of

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested, Number, TensorLike

__all__ = ["repeat", "while_loop"]

_logger = logging.getLogger(__name__)


def while_loop(
    condition: Callable[..., TensorLike],
    body: Callable[..., Nested],
    inputs: Sequence[TensorLike] | TensorLike | None = None,
    infeed_queue: IPUInfeedQueue | IPUIterator | None = None,
    maximum_iterations: Number | None = None,
    use_while_v1: bool = True,
) -> Nested:
    """Repeats `body` while `condition` is true.

    Args:
      condition: A function of the carried values that returns a bool scalar. It does not get elements of the infeed.
      body: A function of the carried values, followed by the element of the infeed (a tuple by position, a dict by name).
        It returns the carried values of the next iteration, optionally followed by operations to run. It is traced once.
      inputs: The initial carried values: a list, or a single value. They are converted to tensors.
      infeed_queue: A queue, or an iterator of a dataset. `body` takes one element from it in each iteration.
      maximum_iterations: The maximum number of iterations: an int of up to 2**31 - 1, or an integer scalar, which is
        limited to that value. The gradient of a loop needs a limit that is known when the program is traced.
      use_while_v1: Accepted without effect, since TensorFlow 2 has only one kind of loop. False logs a warning.

    Returns:
      The last carried values: a tensor for one value, a list for several, an operation for none.

    Raises:
      TypeError: `condition` or `body` does not accept these arguments; `body` returns another number of tensors than it
        takes, or other dtypes; `condition` does not return a bool scalar; or an argument has the wrong type.
      ValueError: `body` returns tensors after operations, or changes the shape of a carried value; or
        `maximum_iterations` is not a scalar, or too large.
    """
    _check_while_version(use_while_v1)
    limit = None
    if maximum_iterations is not None:
        # TensorFlow counts iterations in int32.
        limit = _iterations("maximum_iterations", maximum_iterations, tf.int32.max)
        if limit.dtype.max > tf.int32.max:
            limit = tf.minimum(limit, tf.constant(tf.int32.max, limit.dtype))
        limit = tf.cast(limit, tf.int32)
    carried = _carried_values(inputs)
    queue = _checked_queue(infeed_queue)
    accepted = _unmatched_signature(condition, len(carried), ())
    if accepted is not None:
        raise TypeError(
            "Supplied loop condition function cannot be called with the specified inputs. You specified"
            f" {len(carried)} inputs, but the condition takes {accepted}. Note that infeed is not passed to the loop condition."
        )
    condition_function = user_code(condition)
    zero = tf.constant(0)
    return _loop(lambda _, *values: _bool_scalar(condition_function(*values)), body, zero, carried, queue, limit)


def repeat(
    n: TensorLike,
    body: Callable[..., Nested],
    inputs: Sequence[TensorLike] | TensorLike | None = None,
    infeed_queue: IPUInfeedQueue | IPUIterator | None = None,
    use_while_v1: bool = True,
) -> Nested:
    """Repeats `body` `n` times. See `while_loop` for the result and the errors.

    Args:
      n: The number of iterations: an int of 64 bits or an integer scalar. A negative number means none. The gradient of a
        loop needs a number that is known when the program is traced.
      body: As for `while_loop`.
      inputs: The initial carried values, as for `while_loop`.
      infeed_queue: A queue, or an iterator of a dataset. `body` takes one element from it in each iteration.
      use_while_v1: Accepted without effect, as for `while_loop`.

    Raises:
      ValueError: `n` is not a scalar, or exceeds 64 bits; or as for `while_loop`.
    """
    _check_while_version(use_while_v1)
    count = _iterations("n", n)
    carried = _carried_values(inputs)
    queue = _checked_queue(infeed_queue)
    # XLA allocates the stacks of a loop's gradient by this limit, which TensorFlow stores as int32.
    static = tf.get_static_value(count)
    limit = None if static is None or static > tf.int32.max else max(0, int(static))
    return _loop(lambda i, *_: i < count, body, tf.constant(0, count.dtype), carried, queue, limit)


def _check_while_version(use_while_v1: bool) -> None:
    """Checks `use_while_v1`, and logs a warning that False has no effect."""
    check_bool("use_while_v1", use_while_v1)
    if not use_while_v1:
        _logger.warning("`use_while_v1=False` makes no difference: loops of a `tf.function` are of version 2.")


def _iterations(argument: str, value: TensorLike, maximum: int = tf.int64.max) -> tf.Tensor:
    """Converts a number of iterations, at most `maximum`, to an integer scalar."""
    if value is None or isinstance(value, (bool, float)):
        raise TypeError(f"`{argument}` must be a whole number of iterations, but is {value!r}")
    if isinstance(value, (int, np.integer)) and not tf.int64.min <= value <= maximum:
        raise ValueError(f"`{argument}` must be from {tf.int64.min} to {maximum}, but is {value}")
    count = tf.convert_to_tensor(value)
    if not count.dtype.is_integer:
        raise TypeError(f"`{argument}` must be a whole number of iterations, but is of type {count.dtype.name}")
    if count.shape.rank not in (0, None):
        raise ValueError(f"`{argument}` must be a scalar, but has shape {count.shape}")
    return count


def _bool_scalar(value: TensorLike) -> tf.Tensor:
    """Converts the result of a loop's condition to a bool scalar."""
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype != tf.bool or tensor.shape.rank not in (0, None):
        raise TypeError(
            f"`condition` must return a bool scalar, but returns a tensor of type {tensor.dtype.name} and shape"
            f" {tensor.shape}"
        )
    return tensor


def _checked_queue(infeed_queue: IPUInfeedQueue | IPUIterator | None) -> IPUInfeedQueue | None:
    """Returns the infeed queue, or the queue of an iterator. Rejects all other types."""
    queue = queue_of(infeed_queue) if isinstance(infeed_queue, IPUIterator) else infeed_queue
    if queue is not None and not isinstance(queue, IPUInfeedQueue):
        raise TypeError(
            f"`infeed_queue` must be an `IPUInfeedQueue`, but is {infeed_queue!r}. Wrap a dataset:"
            " `IPUInfeedQueue(dataset)`"
        )
    return queue


def _unmatched_signature(function: Callable[..., Nested], positional: int, names: Sequence[str]) -> str | None:
    """Returns None if `function` accepts these arguments; otherwise the arguments that it accepts, as text."""
    if not callable(function):
        return f"none, since it is {function!r}"
    python_function = getattr(function, "python_function", function)
    try:
        signature = inspect.signature(python_function)
    except (TypeError, ValueError):  # Functions written in C may have no signature.
        return None
    try:
        signature.bind(*[None] * positional, **dict.fromkeys(names))
    except TypeError:
        return f"`{signature}`"
    return None


def _carried_values(inputs: Nested) -> list[tf.Tensor]:
    """Converts the initial carried values, a list, a tuple, a single value or None, to tensors."""
    if inputs is None:
        return []
    values = inputs if isinstance(inputs, (list, tuple)) else [inputs]
    return [_tensor("`inputs`", value) for value in values]


def _loop(
    condition: Callable[..., tf.Tensor],
    body: Callable[..., Nested],
    first_count: tf.Tensor,
    carried: list[tf.Tensor],
    queue: IPUInfeedQueue | None,
    limit: int | tf.Tensor | None,
) -> Nested:
    """Builds the loop, with a counter in front of the carried values, and returns the last carried values."""
    positional, names = (0, ()) if queue is None else expected(queue)
    accepted = _unmatched_signature(body, len(carried) + positional, names)
    if accepted is not None:
        infeed_inputs = "" if queue is None else f" and {positional + len(names)} additional inputs from infeed"
        named = f" ({', '.join(names)} by name)" if names else ""
        raise TypeError(
            "Supplied loop body function cannot be called with the specified inputs. You specified"
            f" {len(carried)} inputs{infeed_inputs}{named}, but the body takes {accepted}."
        )
    function = user_code(body)
    types = [value.dtype for value in carried]

    def step(counter: tf.Tensor, *values: tf.Tensor) -> tuple[tf.Tensor, ...]:
        positional, named = ([], {}) if queue is None else take(queue)
        tensors, operations = _split(function(*values, *positional, **named))
        if types != [tensor.dtype for tensor in tensors]:
            raise TypeError(
                "Mismatch between input types and output types for loop body:"
                f" {[dtype.name for dtype in types]} vs {[tensor.dtype.name for tensor in tensors]}. The body must"
                " return a value for each carried one, of the same type"
            )
        if not operations:
            return (counter, *tensors)
        with tf.control_dependencies(operations):
            return tuple(tf.identity(tensor) for tensor in (counter, *tensors))

    counter, *last_values = tf.while_loop(
        condition,
        lambda i, *values: step(i + 1, *values),
        (first_count, *carried),
        parallel_iterations=1,
        maximum_iterations=limit,
    )
    if not last_values:
        return tf.group(counter)
    return last_values[0] if len(last_values) == 1 else last_values


def _split(returned: Nested) -> tuple[list[tf.Tensor], list[tf.Operation]]:
    """Splits the values that a body returned into tensors and operations."""
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


def _tensor(source: str, value: TensorLike) -> tf.Tensor:
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError) as exc:
        raise TypeError(
            f"{source} must be a tensor, or a list or tuple of them, but holds {value!r}, which is no tensor: {exc}"
        ) from exc
