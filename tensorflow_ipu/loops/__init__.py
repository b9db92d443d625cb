"""Loops that stay on the device: `while_loop` and `repeat`, whose body may take a dataset's elements."""

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
    """Repeats `body` while `condition` holds.

    Args:
      condition: From the carried values to a bool scalar. Elements of the infeed are not passed to it.
      body: From the carried values, then the element of the infeed (a tuple by position, a dict by name), to the carried
        values of the next iteration, optionally followed by operations that the iteration is to run. It is called once.
      inputs: The first carried values: a list, or one value. What is no tensor is converted to one.
      infeed_queue: The queue that `body` takes one element an iteration from, or an iterator of a dataset.
      maximum_iterations: An upper limit to the iterations, as an int of up to 2**31 - 1, or an integer scalar, of which
        that is the most. The gradient of a loop needs one that is known when the program is traced.
      use_while_v1: Accepted: TensorFlow 2 has one kind of loop left, and False logs a warning, as in the original.

    Returns:
      The last carried values: the tensor for one, a list for several, an operation for none.

    Raises:
      TypeError: `condition` or `body` cannot be called with these arguments; `body` returns other types than it takes, or
        another number of tensors; `condition` returns no bool scalar; or an argument is of a wrong kind.
      ValueError: `body` returns tensors after operations, or tensors of other shapes than it takes; or
        `maximum_iterations` is no scalar, or too high.
    """
    _note_while_version(use_while_v1)
    most = None
    if maximum_iterations is not None:
        # TensorFlow counts them in int32.
        most = _iterations("maximum_iterations", maximum_iterations, tf.int32.max)
        if most.dtype.max > tf.int32.max:
            most = tf.minimum(most, tf.constant(tf.int32.max, most.dtype))
        most = tf.cast(most, tf.int32)
    carried = _carried_values(inputs)
    queue = _checked_queue(infeed_queue)
    needs = _misfit(condition, len(carried), ())
    if needs is not None:
        raise TypeError(
            "Supplied loop condition function cannot be called with the specified inputs. You specified"
            f" {len(carried)} inputs, but the condition takes {needs}. Note that infeed is not passed to the loop condition."
        )
    holds = user_code(condition)
    zero = tf.constant(0)
    return _loop(lambda _, *values: _truth(holds(*values)), body, zero, carried, queue, most)


def repeat(
    n: TensorLike,
    body: Callable[..., Nested],
    inputs: Sequence[TensorLike] | TensorLike | None = None,
    infeed_queue: IPUInfeedQueue | IPUIterator | None = None,
    use_while_v1: bool = True,
) -> Nested:
    """Repeats `body` `n` times; see `while_loop` for the result, and for what is raised.

    Args:
      n: An int of 64 bits or an integer scalar; there are no iterations for 0 or less. The gradient of a loop needs a
        number that is known when the program is traced.
      body: As for `while_loop`.
      inputs: The first carried values, as for `while_loop`.
      infeed_queue: The queue that `body` takes one element an iteration from, or an iterator of a dataset.
      use_while_v1: Accepted, as for `while_loop`.

    Raises:
      ValueError: `n` is no scalar, or does not fit into 64 bits; or as for `while_loop`.
    """
    _note_while_version(use_while_v1)
    count = _iterations("n", n)
    carried = _carried_values(inputs)
    queue = _checked_queue(infeed_queue)
    # With a limit, XLA knows how much the gradient of a loop has to keep. TensorFlow takes one of int32.
    static = tf.get_static_value(count)
    limit = None if static is None or static > tf.int32.max else max(0, int(static))
    return _loop(lambda i, *_: i < count, body, tf.constant(0, count.dtype), carried, queue, limit)


def _note_while_version(use_while_v1: bool) -> None:
    """Checks the argument that picks one of TensorFlow 1's kinds of loop, and logs the choice that is no more."""
    check_bool("use_while_v1", use_while_v1)
    if not use_while_v1:
        _logger.warning("`use_while_v1=False` makes no difference: loops of a `tf.function` are of version 2.")


def _iterations(argument: str, value: TensorLike, most: int = tf.int64.max) -> tf.Tensor:
    """A number of iterations, which may be as high as `most`, as an integer scalar."""
    if value is None or isinstance(value, (bool, float)):
        raise TypeError(f"`{argument}` must be a whole number of iterations, but is {value!r}")
    if isinstance(value, (int, np.integer)) and not tf.int64.min <= value <= most:
        raise ValueError(f"`{argument}` must be from {tf.int64.min} to {most}, but is {value}")
    count = tf.convert_to_tensor(value)
    if not count.dtype.is_integer:
        raise TypeError(f"`{argument}` must be a whole number of iterations, but is of type {count.dtype.name}")
    if count.shape.rank not in (0, None):
        raise ValueError(f"`{argument}` must be a scalar, but has shape {count.shape}")
    return count


def _truth(value: TensorLike) -> tf.Tensor:
    """What a loop's condition returned, as a bool scalar."""
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype != tf.bool or tensor.shape.rank not in (0, None):
        raise TypeError(
            f"`condition` must return a bool scalar, but returns a tensor of type {tensor.dtype.name} and shape"
            f" {tensor.shape}"
        )
    return tensor


def _checked_queue(infeed_queue: IPUInfeedQueue | IPUIterator | None) -> IPUInfeedQueue | None:
    """Returns the infeed queue, or that of an iterator, and refuses all else."""
    queue = queue_of(infeed_queue) if isinstance(infeed_queue, IPUIterator) else infeed_queue
    if queue is not None and not isinstance(queue, IPUInfeedQueue):
        raise TypeError(
            f"`infeed_queue` must be an `IPUInfeedQueue`, but is {infeed_queue!r}. Wrap a dataset:"
            " `IPUInfeedQueue(dataset)`"
        )
    return queue


def _misfit(function: Callable[..., Nested], positional: int, names: Sequence[str]) -> str | None:
    """None if the function can be called so; else which arguments it takes, in words."""
    if not callable(function):
        return f"none, since it is {function!r}"
    python_function = getattr(function, "python_function", function)
    try:
        signature = inspect.signature(python_function)
    except (TypeError, ValueError):  # A function of C, which says nothing about itself.
        return None
    try:
        signature.bind(*[None] * positional, **dict.fromkeys(names))
    except TypeError:
        return f"`{signature}`"
    return None


def _carried_values(inputs: Nested) -> list[tf.Tensor]:
    """The first carried values as tensors, from a list, a tuple, one value, or None for none."""
    if inputs is None:
        return []
    values = inputs if isinstance(inputs, (list, tuple)) else [inputs]
    return [_tensor("`inputs`", value) for value in values]


def _loop(
    holds: Callable[..., tf.Tensor],
    body: Callable[..., Nested],
    first: tf.Tensor,
    carried: list[tf.Tensor],
    queue: IPUInfeedQueue | None,
    most: int | tf.Tensor | None,
) -> Nested:
    """Repeats the body, with a counter before what it carries, and returns the last carried values."""
    positional, names = (0, ()) if queue is None else expected(queue)
    needs = _misfit(body, len(carried) + positional, names)
    if needs is not None:
        more = "" if queue is None else f" and {positional + len(names)} additional inputs from infeed"
        named = f" ({', '.join(names)} by name)" if names else ""
        raise TypeError(
            "Supplied loop body function cannot be called with the specified inputs. You specified"
            f" {len(carried)} inputs{more}{named}, but the body takes {needs}."
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

    counter, *last = tf.while_loop(
        holds,
        lambda i, *values: step(i + 1, *values),
        (first, *carried),
        parallel_iterations=1,
        maximum_iterations=most,
    )
    if not last:
        return tf.group(counter)
    return last[0] if len(last) == 1 else last


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
