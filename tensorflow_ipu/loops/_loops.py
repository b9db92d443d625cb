"""`while_loop` and `repeat`: loops of a body that takes a dataset's elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._tensorflow.autograph import user_code
from tensorflow_ipu.feeds import IPUInfeedQueue
from tensorflow_ipu.loops import _signature
from tensorflow_ipu.loops._body import Body, carried_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorflow_ipu._types import Nested, Number, TensorLike


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
    _signature.note_while_version(use_while_v1)
    most = None
    if maximum_iterations is not None:
        most = _signature.most_iterations(maximum_iterations)
    carried = carried_values(inputs)
    _signature.check_queue(infeed_queue)
    _signature.check_condition(condition, len(carried))
    _signature.check_body(body, len(carried), infeed_queue)
    condition = user_code(condition)
    step = Body(body, carried, infeed_queue)
    # A loop of TensorFlow carries something; a counter stands in where the body carries nothing.
    last = tf.while_loop(
        lambda _, *values: _signature.truth(condition(*values)),
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
    _signature.note_while_version(use_while_v1)
    count = _signature.iterations("n", n)
    carried = carried_values(inputs)
    _signature.check_queue(infeed_queue)
    _signature.check_body(body, len(carried), infeed_queue)
    step = Body(body, carried, infeed_queue)
    last = tf.while_loop(
        lambda i, *_: i < count,
        lambda i, *values: step(i + 1, *values),
        (tf.constant(0, count.dtype), *carried),
        parallel_iterations=1,
        maximum_iterations=_signature.limit(count),
    )
    return _result(last)


def _result(last: Sequence[tf.Tensor]) -> Nested:
    """What a loop returns: the carried values without the counter."""
    counter, *values = last
    if not values:
        return tf.group(counter)
    return values[0] if len(values) == 1 else values
