"""Checks of a loop's arguments, made before anything is traced."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from tensorflow_ipu._checks import check_bool
from tensorflow_ipu.feeds import IPUInfeedQueue, body_arguments

if TYPE_CHECKING:
    from tensorflow_ipu._types import Nested, TensorLike

_logger = logging.getLogger(__name__)


def note_while_version(use_while_v1: bool) -> None:
    """Checks the argument that picks one of TensorFlow 1's kinds of loop, and logs the choice that is no more.

    Raises:
      TypeError: It is no bool.
    """
    check_bool("use_while_v1", use_while_v1)
    if not use_while_v1:
        _logger.warning("`use_while_v1=False` makes no difference: loops of a `tf.function` are of version 2.")


def iterations(argument: str, value: TensorLike, most: int = tf.int64.max) -> tf.Tensor:
    """A number of iterations, which may be as high as `most`, as an integer scalar.

    Raises:
      TypeError: `value` is no whole number.
      ValueError: `value` is no scalar, or too high.
    """
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
    """What a loop's condition returned, as a bool scalar.

    Raises:
      TypeError: It is none.
    """
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype != tf.bool or tensor.shape.rank not in (0, None):
        raise TypeError(
            f"`condition` must return a bool scalar, but returns a tensor of type {tensor.dtype.name} and shape"
            f" {tensor.shape}"
        )
    return tensor


def check_queue(infeed_queue: object) -> None:
    """Refuses what is no infeed queue.

    Raises:
      TypeError: It is something else.
    """
    if infeed_queue is not None and not isinstance(infeed_queue, IPUInfeedQueue):
        raise TypeError(
            f"`infeed_queue` must be an `IPUInfeedQueue`, but is {infeed_queue!r}. Wrap a dataset:"
            " `IPUInfeedQueue(dataset)`"
        )


def check_condition(condition: Callable[..., TensorLike], carried: int) -> None:
    """Checks that the condition can be called with the carried values.

    Raises:
      TypeError: It cannot.
    """
    needs = _misfit(condition, carried, ())
    if needs is not None:
        raise TypeError(
            f"Supplied loop condition function cannot be called with the specified inputs. You specified {carried} inputs,"
            f" but the condition takes {needs}. Note that infeed is not passed to the loop condition."
        )


def check_body(body: Callable[..., Nested], carried: int, infeed_queue: IPUInfeedQueue | None) -> None:
    """Checks that the body can be called with the carried values and an element.

    Raises:
      TypeError: It cannot.
    """
    positional, names = (0, ()) if infeed_queue is None else body_arguments.expected(infeed_queue)
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
