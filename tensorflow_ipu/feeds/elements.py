"""The elements of an infeed: which datasets can feed a program, and how a program gets at their parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu.feeds import _arguments

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested
    from tensorflow_ipu.feeds.infeed import IPUInfeedQueue

# What the machine's streams carry from the host.
DTYPES = (tf.int32, tf.float32, tf.float16, tf.bool, tf.int8, tf.uint8)


class ElementSpec:
    """The spec of a dataset's elements, nested and flat."""

    def __init__(self, nested: Nested) -> None:
        """Takes a dataset's `element_spec`."""
        self.nested = nested
        faults = _faults(nested)
        if faults:
            raise ValueError("; ".join(faults))
        self.types: list[tf.DType] = [spec.dtype for spec in tf.nest.flatten(nested)]
        self.shapes: list[tf.TensorShape] = [spec.shape for spec in tf.nest.flatten(nested)]

    def check_types(self) -> None:
        """Checks what the contract has checked when the queue starts."""
        for index, dtype in enumerate(self.types):
            if dtype not in DTYPES:
                names = ", ".join(known.name for known in DTYPES)
                raise tf.errors.FailedPreconditionError(
                    None,
                    None,
                    f"Unsupported datatype {'double' if dtype == tf.float64 else dtype.name} on index {index} of the feed's"
                    f" elements, whose spec is {self.nested}. A feed carries ({names}): map the dataset, `dataset.map(...)`,"
                    f" and {_arguments.for_type(dtype)}",
                )

    def pack(self, tensors: list[tf.Tensor]) -> Nested:
        """Gives flat tensors the structure of an element."""
        return tf.nest.pack_sequence_as(self.nested, tensors)


def arguments(element: Nested) -> tuple[list[Nested], dict[str, Nested]]:
    """How a loop's body gets an element: a tuple by position, a dict by name, a tensor as one argument.

    A tuple that holds one dict counts as the dict. A dict among others is one positional argument.
    """
    if isinstance(element, tuple) and len(element) == 1 and _is_named(element[0]):
        element = element[0]
    if _is_named(element):
        return [], dict(element)
    if isinstance(element, (tuple, list)):
        return list(element), {}
    return [element], {}


def _is_named(element: Nested) -> bool:
    return isinstance(element, Mapping) and all(isinstance(key, str) for key in element)


def _nested_sequences(nested: Nested) -> list[Nested]:
    """The lists and tuples inside of a structure, at any depth, but for the structure itself."""
    inner = nested.values() if isinstance(nested, Mapping) else nested
    parts = list(inner) if isinstance(nested, (Mapping, tuple, list)) else []
    return [
        found for part in parts for found in ([part] if isinstance(part, (tuple, list)) else _nested_sequences(part))
    ]


def _faults(nested: Nested) -> list[str]:
    faults = [
        f"Nested list/tuple input shapes are not supported: the dataset's `element_spec` has {part} inside of it. Map"
        " the dataset to flat tuples, or to dicts"
        for part in _nested_sequences(nested)
    ]
    for spec in tf.nest.flatten(nested):
        if not isinstance(spec, tf.TensorSpec):
            faults.append(
                f"the dataset's elements hold {spec}; a feed carries dense tensors alone, so convert it to them"
            )
        elif not spec.shape.is_fully_defined():
            faults.append(
                f"Output shape {spec.shape} is not fully defined. Give the dataset static shapes: for `batch`, set"
                " `drop_remainder=True`; for a generator or `py_function`, state the shapes"
            )
    return faults


def take(queue: IPUInfeedQueue) -> tuple[list[Nested], dict[str, Nested]]:
    """Takes the next element in the program being traced: the arguments by position, and those by name."""
    return arguments(queue._dequeue())


def expected(queue: IPUInfeedQueue) -> tuple[int, tuple[str, ...]]:
    """How many arguments an element is by position, and the names of those by name."""
    positional, named = arguments(queue.element_spec)
    return len(positional), tuple(named)


def specs(queue: IPUInfeedQueue) -> tuple[list[Nested], dict[str, Nested]]:
    """The arguments that an element is, as `tf.TensorSpec`: by position, and by name."""
    return arguments(queue.element_spec)
