"""`while_loop` and `repeat`: loops of a body that takes a dataset's elements."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from tensorflow_ipu._base.checks import check_bool
from tensorflow_ipu._tensorflow.autograph import user_code
from tensorflow_ipu.feeds import IPUInfeedQueue, elements

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorflow_ipu._base.types import Nested, Number, TensorLike

_logger = logging.getLogger(__name__)


def note_while_version(use_while_v1: bool) -> None:
    """Checks the argument that picks one of TensorFlow 1's kinds of loop, and logs the choice that is no more."""
    check_bool("use_while_v1", use_while_v1)
    if not use_while_v1:
        _logger.warning("`use_while_v1=False` makes no difference: loops of a `tf.function` are of version 2.")


def iterations(argument: str, value: TensorLike, most: int = tf.int64.max) -> tf.Tensor:
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


def most_iterations(value: TensorLike) -> tf.Tensor:
    """`maximum_iterations` as an int32 scalar, the type in which TensorFlow counts them."""
    most = iterations("maximum_iterations", value, tf.int32.max)
    if most.dtype.max > tf.int32.max:
        most = tf.minimum(most, tf.constant(tf.int32.max, most.dtype))
    return tf.cast(most, tf.int32)


def limit(count: tf.Tensor) -> int | None:
    """The most iterations that TensorFlow need be told of, for a number from `iterations`: None if it is not static.

    With a limit, XLA knows how much the gradient of a loop has to keep.
    """
    value = tf.get_static_value(count)
    return None if value is None or value > tf.int32.max else max(0, int(value))


def truth(value: TensorLike) -> tf.Tensor:
    """What a loop's condition returned, as a bool scalar."""
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype != tf.bool or tensor.shape.rank not in (0, None):
        raise TypeError(
            f"`condition` must return a bool scalar, but returns a tensor of type {tensor.dtype.name} and shape"
            f" {tensor.shape}"
        )
    return tensor


def check_queue(infeed_queue: object) -> None:
    """Refuses what is no infeed queue."""
    if infeed_queue is not None and not isinstance(infeed_queue, IPUInfeedQueue):
        raise TypeError(
            f"`infeed_queue` must be an `IPUInfeedQueue`, but is {infeed_queue!r}. Wrap a dataset:"
            " `IPUInfeedQueue(dataset)`"
        )


def check_condition(condition: Callable[..., TensorLike], carried: int) -> None:
    """Checks that the condition can be called with the carried values."""
    needs = _misfit(condition, carried, ())
    if needs is not None:
        raise TypeError(
            f"Supplied loop condition function cannot be called with the specified inputs. You specified {carried} inputs,"
            f" but the condition takes {needs}. Note that infeed is not passed to the loop condition."
        )


def check_body(body: Callable[..., Nested], carried: int, infeed_queue: IPUInfeedQueue | None) -> None:
    """Checks that the body can be called with the carried values and an element."""
    positional, names = (0, ()) if infeed_queue is None else elements.expected(infeed_queue)
    needs = _misfit(body, carried + positional, names)
    if needs is None:
        return
    more = "" if infeed_queue is None else f" and {positional + len(names)} additional inputs from infeed"
    named = f" ({', '.join(names)} by name)" if names else ""
    raise TypeError(
        f"Supplied loop body function cannot be called with the specified inputs. You specified {carried} inputs{more}"
        f"{named}, but the body takes {needs}."
    )


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
        """Runs an iteration."""
        positional, named = ([], {}) if self._queue is None else elements.take(self._queue)
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


def while_loop(
    condition: Callable[..., TensorLike],
    body: Callable[..., Nested],
    inputs: Sequence[TensorLike] | TensorLike | None = None,
    infeed_queue: IPUInfeedQueue | None = None,
    maximum_iterations: Number | None = None,
    use_while_v1: bool = True,
) -> Nested:
    """Repeats `body` while `condition` holds.

    Args:
      condition: From the carried values to a bool scalar. Elements of the infeed are not passed to it.
      body: From the carried values, then the element of the infeed (a tuple by position, a dict by name), to the carried
        values of the next iteration, optionally followed by operations that the iteration is to run. It is called once.
      inputs: The first carried values: a list, or one value. What is no tensor is converted to one.
      infeed_queue: The queue that `body` takes one element an iteration from.
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
    note_while_version(use_while_v1)
    most = None
    if maximum_iterations is not None:
        most = most_iterations(maximum_iterations)
    carried = carried_values(inputs)
    check_queue(infeed_queue)
    check_condition(condition, len(carried))
    check_body(body, len(carried), infeed_queue)
    condition = user_code(condition)
    step = Body(body, carried, infeed_queue)
    # A loop of TensorFlow carries something; a counter stands in where the body carries nothing.
    last = tf.while_loop(
        lambda _, *values: truth(condition(*values)),
        lambda i, *values: step(i + 1, *values),
        (tf.constant(0), *carried),
        parallel_iterations=1,
        maximum_iterations=most,
    )
    return _result(last)


def repeat(
    n: TensorLike,
    body: Callable[..., Nested],
    inputs: Sequence[TensorLike] | TensorLike | None = None,
    infeed_queue: IPUInfeedQueue | None = None,
    use_while_v1: bool = True,
) -> Nested:
    """Repeats `body` `n` times.

    Args:
      n: The number of iterations, as an int of 64 bits or an integer scalar; there are none for 0 or less. The gradient of
        a loop needs a number that is known when the program is traced.
      body: From the carried values, then the element of the infeed (a tuple by position, a dict by name), to the carried
        values of the next iteration, optionally followed by operations that the iteration is to run. It is called once.
      inputs: The first carried values: a list, or one value. What is no tensor is converted to one.
      infeed_queue: The queue that `body` takes one element an iteration from.
      use_while_v1: Accepted: TensorFlow 2 has one kind of loop left, and False logs a warning, as in the original.

    Returns:
      The last carried values: the tensor for one, a list for several, an operation for none.

    Raises:
      TypeError: `body` cannot be called with these arguments, or returns other types than it takes, or another number of
        tensors; or an argument is of a wrong kind.
      ValueError: `body` returns tensors after operations, or tensors of other shapes than it takes; or `n` is no scalar,
        or does not fit into 64 bits.
    """
    note_while_version(use_while_v1)
    count = iterations("n", n)
    carried = carried_values(inputs)
    check_queue(infeed_queue)
    check_body(body, len(carried), infeed_queue)
    step = Body(body, carried, infeed_queue)
    last = tf.while_loop(
        lambda i, *_: i < count,
        lambda i, *values: step(i + 1, *values),
        (tf.constant(0, count.dtype), *carried),
        parallel_iterations=1,
        maximum_iterations=limit(count),
    )
    return _result(last)


def _result(last: Sequence[tf.Tensor]) -> Nested:
    """What a loop returns: the carried values without the counter."""
    counter, *values = last
    if not values:
        return tf.group(counter)
    return values[0] if len(values) == 1 else values
