"""Blocks of a program whose operations, and their gradients, compute in a way of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import tensorflow as tf

from tensorflow_ipu.replicas import _gradients, _instruction_attributes, _numbers, _tracing

_PARTIALS = "ipu_partials_type"


def computed_by(
    attributes: Mapping[str, str], after: Mapping[str, str] | None = None
) -> contextlib.AbstractContextManager[None]:
    """A block whose operations have these attributes, and whose gradients have those that say how to compute.

    Args:
      attributes: Names and values.
      after: The attributes of operations after the block, for names that had no value before it.
    """
    if not tf.executing_eagerly() and not _instruction_attributes.INHERITED.isdisjoint(attributes):
        graph = tf.compat.v1.get_default_graph()
        _gradients.follow_operations(graph)
        _numbers.ask(graph)
    return _instruction_attributes.set_to(attributes, after)


def summed_in(partials: tf.DType, type_: tf.DType | str) -> contextlib.AbstractContextManager[None]:
    """A block in which a layer that has a type of partial sums multiplies; a scope around it goes before that.

    Args:
      partials: float16 or float32; the latter is what sums accumulate in where nobody says.
      type_: The type of what it multiplies.
    """
    in_half = partials == tf.float16
    known = in_half or _tracing.numbers_now().partials_matmul == "half"
    if not known or type_ != tf.float16 or not _tracing.is_tracing() or _PARTIALS in _instruction_attributes.now():
        return contextlib.nullcontext()
    return computed_by({_PARTIALS: "half" if in_half else "float"})
