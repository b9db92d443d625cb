"""The structure, types and shapes of an outfeed's elements, under a number that programs carry.

A program knows its outfeed by value alone, so what it enqueues says by a number how to put it together again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu.feeds import _arguments
from tensorflow_ipu.feeds._rows import RowReader

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested


def describe(nested: Nested) -> str:
    """Describes a structure: its containers by their types, its tensors by dtype and shape.

    Dicts are equal in whatever order they were filled. A named tuple is no tuple, though Python has the two be equal.
    """
    if isinstance(nested, tf.TensorSpec):
        return f"{nested.dtype.name}{nested.shape}"
    kind = f"{type(nested).__module__}.{type(nested).__qualname__}"
    if isinstance(nested, Mapping):
        return f"{kind}{{{', '.join(f'{key!r}: {describe(nested[key])}' for key in sorted(nested))}}}"
    if isinstance(nested, (list, tuple)):
        return f"{kind}({', '.join(map(describe, nested))})"
    return repr(nested)


# What a program can hand to the host. float64 is missing on an IPU, and strings and such in a program.
_REFUSED = (tf.float64, tf.complex64, tf.complex128, tf.string, tf.resource, tf.variant)

_layouts: dict[int, ElementLayout] = {}


class ElementLayout:
    """How the elements of an outfeed are put together."""

    def __init__(self, nested: Nested) -> None:
        """Takes a structure of `tf.TensorSpec`."""
        flat = tf.nest.flatten(nested)
        self.nested = nested
        self.is_leaf = isinstance(nested, tf.TensorSpec)
        self.types = [spec.dtype for spec in flat]
        self.shapes = [spec.shape for spec in flat]
        self.bytes = sum(spec.shape.num_elements() * spec.dtype.size for spec in flat)
        digest = hashlib.blake2b(describe(nested).encode(), digest_size=8).digest()
        self.number = int.from_bytes(digest, "little") % (2**63 - 1) + 1
        self.row_reader: RowReader | None = None
        if RowReader.serves(self.types):
            self.row_reader = RowReader(self.number, self.types, self.shapes, self.pack)

    def pack(self, tensors: list[tf.Tensor]) -> Nested:
        """Gives flat tensors the structure of an element."""
        if self.is_leaf:
            return tensors[0]
        return tf.nest.pack_sequence_as(self.nested, tensors)


def of(tensors: Nested) -> tuple[ElementLayout, list[tf.Tensor]]:
    """The layout of an element that is being enqueued, and its flat tensors."""
    flat = []
    for index, value in enumerate(tf.nest.flatten(tensors)):
        if value is None or (isinstance(value, tf.__internal__.CompositeTensor) and not isinstance(value, tf.Variable)):
            raise TypeError(f"`tensors` holds {value!r} at position {index}; an outfeed takes dense tensors alone")
        tensor = tf.convert_to_tensor(value)
        if tensor.dtype in _REFUSED:
            raise TypeError(
                f"`tensors` holds a tensor of type {tensor.dtype.name} at position {index}, which an IPU does not hand to"
                f" the host: {_arguments.for_type(tensor.dtype)}"
            )
        if not tensor.shape.is_fully_defined():
            raise ValueError(
                f"`tensors` holds a tensor of shape {tensor.shape} at position {index}; an outfeed needs shapes that are"
                " fully defined when the program is traced: use `tf.ensure_shape`, or no `reduce_retracing`"
            )
        flat.append(tensor)
    if not flat:
        raise ValueError(f"`tensors` must hold at least one tensor, but is {tensors!r}")
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in flat]
    return note(ElementLayout(tf.nest.pack_sequence_as(tensors, specs))), flat


def note(layout: ElementLayout) -> ElementLayout:
    """The layout by which this process knows elements of this one's number from now on."""
    return _layouts.setdefault(layout.number, layout)


def paths(nested: Nested, path: tuple[object, ...] = ()) -> list[tuple[tuple[object, ...], Nested]]:
    """The tensors of a structure, each with the keys and positions that lead to it, in `tf.nest` order."""
    if isinstance(nested, Mapping):
        return [found for key in sorted(nested) for found in paths(nested[key], (*path, key))]
    if isinstance(nested, (list, tuple)):
        return [found for at, one in enumerate(nested) for found in paths(one, (*path, at))]
    return [(path, nested)]


def numbered(number: int) -> ElementLayout:
    """The layout of a number that came back from a program of this process."""
    return _layouts[number]
