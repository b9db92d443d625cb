"""What is said of the instructions that operations become: TensorFlow hands it to XLA, and the machine's report reads it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import tensorflow as tf

from tensorflow_ipu._tensorflow import graphs, xla

# TensorFlow's bridge to XLA copies this one onto the instructions of the program.
_ATTRIBUTE = "_XlaFrontendAttributes"

# How numbers are computed: gradients compute as what they are the gradients of.
INHERITED = frozenset({"ipu_partials_type", "ipu_stochastic_rounding"})


def now() -> dict[str, str]:
    """What the operations that are made now say."""
    attribute = graphs.attribute_now(_ATTRIBUTE)
    return {} if attribute is None else xla.frontend_attributes(attribute.s)


@contextlib.contextmanager
def set_to(attributes: Mapping[str, str], after: Mapping[str, str] | None = None) -> Iterator[None]:
    """A block whose operations say this, besides what they would say without it.

    Args:
      attributes: Names and values.
      after: What operations say after the block, where they said nothing of the name before it.
    """
    before = now()
    _set({**before, **attributes})
    try:
        yield
    finally:
        _set({**(after or {}), **before})


def add(operation: tf.Operation, attributes: Mapping[str, str]) -> None:
    """Has an operation that is in a graph say this too."""
    said = xla.frontend_attributes(operation.node_def.attr[_ATTRIBUTE].s)  # Nothing where it has none.
    graphs.set_attribute(operation, _ATTRIBUTE, _value({**said, **attributes}))


def inherited_from(operation: tf.Operation) -> dict[str, str]:
    """What an operation of a graph says that its gradients say too."""
    attributes = operation.node_def.attr
    if _ATTRIBUTE not in attributes:
        return {}
    return _inherited(attributes[_ATTRIBUTE])


def is_told_how(graph: tf.Graph, operation: tf.Operation) -> bool:
    """Whether an operation says how it computes, or is in a loop or a function that is traced where that is said."""
    if inherited_from(operation):
        return True
    said = (graphs.attribute_now(_ATTRIBUTE, one) for one in graphs.around(graphs.enclosing(graph)))
    return any(_inherited(one) for one in said if one is not None)


def _inherited(attribute: tf.compat.v1.AttrValue) -> dict[str, str]:
    said = xla.frontend_attributes(attribute.s)
    return {name: value for name, value in said.items() if name in INHERITED}


def _set(attributes: Mapping[str, str]) -> None:
    graphs.leave_attribute(_ATTRIBUTE, _value(attributes) if attributes else None)


def _value(attributes: Mapping[str, str]) -> tf.compat.v1.AttrValue:
    return tf.compat.v1.AttrValue(s=xla.serialized_frontend_attributes(attributes))
