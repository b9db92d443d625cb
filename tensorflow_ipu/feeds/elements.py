"""Checks the elements of a dataset for an infeed, and converts elements to the arguments of a loop body."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._base import environment
from tensorflow_ipu._base.checks import as_int, is_int
from tensorflow_ipu._base.types import Nested
from tensorflow_ipu.errors import DeviceLimitError

if TYPE_CHECKING:
    from tensorflow_ipu.feeds._queue import Queue

# The limit of a dequeue that takes all elements. Reading the equal `tf.int64.max` takes 7 us.
ALL_ELEMENTS = 2**63 - 1


def strategy_ordinal() -> int | None:
    """Returns the number of the current strategy's device, or None without an IPU strategy."""
    return getattr(tf.distribute.get_strategy().extended, "ordinal", None)


def device_of(device_ordinal: int | None) -> str:
    if device_ordinal is None:
        device_ordinal = strategy_ordinal() or 0
    if not is_int(device_ordinal):
        raise ValueError(f"Device ordinal must be an integer: `device_ordinal` is {device_ordinal!r}")
    if device_ordinal < 0:
        raise ValueError(f"Device ordinal must be >= 0: `device_ordinal` is {device_ordinal}")
    registered = environment.registered_devices()
    if device_ordinal >= registered:
        raise DeviceLimitError(
            f"`device_ordinal` is {device_ordinal}, and {registered} IPU devices are registered, the last of them"
            f" `/device:IPU:{registered - 1}`; " + environment.way_out(environment.DEVICES_VARIABLE, device_ordinal + 1)
        )
    return f"/device:IPU:{device_ordinal}"


def check_max_elements(max_elements: object) -> None:
    """Raises an error unless `max_elements` is None or a valid limit of a dequeue."""
    count = None if max_elements is None else as_int(max_elements)
    if count is None and max_elements is not None:
        raise TypeError(f"`max_elements` must be an integer or None, but is {max_elements!r}")
    if count is not None and not 1 <= count <= ALL_ELEMENTS:
        raise ValueError(f"`max_elements` must be 1 or more and fit in 64 bits, but is {max_elements}")


def check_same_device(queue: Queue, device: str) -> None:
    """Raises `ValueError` for a queue in a program that is being traced for another device."""
    ordinal = strategy_ordinal()
    if ordinal is not None and device != device_of(ordinal):
        raise ValueError(
            f"the program runs on `{device_of(ordinal)}`, but {queue!r} belongs to `{device}`: make the queue inside"
            f" `strategy.scope()` of the strategy that runs the program, or with `device_ordinal={ordinal}`"
        )


def for_type(dtype: tf.DType) -> str:
    """Returns advice for tensors `x` of a type that an IPU does not have, as a clause of an error message."""
    if dtype.is_floating:
        return "cast them to float32, `tf.cast(x, tf.float32)`"
    if dtype.is_integer:
        return "cast them to int32, `tf.cast(x, tf.int32)`"
    if dtype.is_complex:
        return "split them into `tf.math.real(x)` and `tf.math.imag(x)`"
    if dtype == tf.string:
        return "turn them to numbers, as `tf.strings.to_number(x)` or a lookup table do"
    return "leave them out"


class IPUOutfeedMode(enum.Enum):
    """The mode of an outfeed: it keeps `ALL` elements, or only the `LAST` one."""

    ALL = "all"
    LAST = "get_last"


# The types that the machine can stream from the host.
DTYPES = (tf.int32, tf.float32, tf.float16, tf.bool, tf.int8, tf.uint8)


class ElementSpec:
    """The checked spec of a dataset's elements, nested and flat."""

    def __init__(self, nested: Nested) -> None:
        self.nested = nested
        errors = _spec_errors(nested)
        if errors:
            raise ValueError("; ".join(errors))
        self.types: list[tf.DType] = [spec.dtype for spec in tf.nest.flatten(nested)]
        self.shapes: list[tf.TensorShape] = [spec.shape for spec in tf.nest.flatten(nested)]

    def check_types(self) -> None:
        """Raises `tf.errors.FailedPreconditionError` for types that a feed does not carry."""
        for index, dtype in enumerate(self.types):
            if dtype not in DTYPES:
                names = ", ".join(supported.name for supported in DTYPES)
                raise tf.errors.FailedPreconditionError(
                    None,
                    None,
                    f"Unsupported datatype {'double' if dtype == tf.float64 else dtype.name} on index {index} of the feed's"
                    f" elements, whose spec is {self.nested}. A feed carries ({names}): map the dataset, `dataset.map(...)`,"
                    f" and {for_type(dtype)}",
                )

    def pack(self, tensors: list[tf.Tensor]) -> Nested:
        """Packs flat tensors into the structure of an element."""
        return tf.nest.pack_sequence_as(self.nested, tensors)


def arguments(element: Nested) -> tuple[list[Nested], dict[str, Nested]]:
    """Returns the positional and named arguments of a loop body for an element.

    A tuple is passed by position. A dict is passed by name, and so is a dict that is the only part of a tuple.
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
    inner = nested.values() if isinstance(nested, Mapping) else nested
    parts = list(inner) if isinstance(nested, (Mapping, tuple, list)) else []
    return [
        sequence
        for part in parts
        for sequence in ([part] if isinstance(part, (tuple, list)) else _nested_sequences(part))
    ]


def _spec_errors(nested: Nested) -> list[str]:
    errors = [
        f"Nested list/tuple input shapes are not supported: the dataset's `element_spec` has {part} inside of it. Map"
        " the dataset to flat tuples, or to dicts"
        for part in _nested_sequences(nested)
    ]
    for spec in tf.nest.flatten(nested):
        if not isinstance(spec, tf.TensorSpec):
            errors.append(
                f"the dataset's elements hold {spec}; a feed carries dense tensors only, so convert it to dense tensors"
            )
        elif not spec.shape.is_fully_defined():
            errors.append(
                f"Output shape {spec.shape} is not fully defined. Give the dataset static shapes: for `batch`, set"
                " `drop_remainder=True`; for a generator or `py_function`, state the shapes"
            )
    return errors
