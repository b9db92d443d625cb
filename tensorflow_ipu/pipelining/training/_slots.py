"""Slots of an optimizer that is made in a pipeline, and so anew in each trace: they are those of the trace before.

An optimizer whose learning rate is a tensor of the last stage can only be made in the optimizer function. TensorFlow
traces the first call of a function twice, and lets variables be made in the first trace alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from tensorflow_ipu._tensorflow.optimizers import take_over_slots

# Of a variable that is trained: for each place where optimizers are made, their slots.
_ATTRIBUTE = "_ipu_slots_of_pipelines"


def take_over(
    optimizer: tf.compat.v1.train.Optimizer,
    function: Callable[..., object],
    stage: tf.Graph,
    variables: Sequence[tf.Variable],
) -> None:
    """Gives an optimizer that was made in this trace the slots of the one that the trace before made at the same point.

    Args:
      optimizer: A `tf.compat.v1.train.Optimizer`, with no slots yet if it was made in this trace.
      function: What made it.
      stage: The graph of the last stage, where it was made: it uses a tensor of this graph, or is left as it is.
      variables: What it trains.
    """
    # In a graph of TensorFlow 1 each program is traced once, and has variables of its own.
    if not tf.compat.v1.executing_eagerly_outside_functions():
        return
    chain = list(_chain(optimizer))
    if not any(getattr(value, "graph", None) is stage for one in chain for value in vars(one).values()):
        return
    owner = variables[0]
    known = vars(owner).setdefault(_ATTRIBUTE, {})
    code = getattr(inspect.unwrap(function), "__code__", None)
    for at, one in enumerate(chain):
        take_over_slots(one, known, (code, at, type(one)))


def _chain(optimizer: tf.compat.v1.train.Optimizer) -> Iterator[tf.compat.v1.train.Optimizer]:
    """An optimizer, and those that it wraps."""
    yield optimizer
    for value in vars(optimizer).values():
        if isinstance(value, tf.compat.v1.train.Optimizer):
            yield from _chain(value)
