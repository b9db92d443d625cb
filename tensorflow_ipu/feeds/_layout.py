"""The structure, types and shapes of an outfeed's elements, by a number that programs carry."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from tensorflow_ipu._base.types import Nested
from tensorflow_ipu._native.library import native
from tensorflow_ipu.feeds import elements

# The first element, put together, and of each other one a tensor for each leaf; None and nothing where there is none.
Taken = tuple[Nested, Sequence[list[tf.Tensor]]]

# The types that TensorFlow takes as DLPack's, by DLPack's code and bits a value: https://github.com/dmlc/dlpack
_TYPES = {
    tf.bool: (6, 8),
    tf.bfloat16: (4, 16),
    tf.float16: (2, 16),
    tf.float32: (2, 32),
    **{tf.as_dtype(f"int{bits}"): (0, bits) for bits in (8, 16, 32, 64)},
    **{tf.as_dtype(f"uint{bits}"): (1, bits) for bits in (8, 16, 32, 64)},
}

# How many elements a call takes at most. More would not be quicker, and an iteration that ends leaves them.
MOST = 64

# Bytes of an element up to which it gets its tensors while it is waited for. To copy a larger one takes longer than to
# make them, and an iteration that has read all would keep so much memory.
_MOST_BYTES_AHEAD = 64 << 10

_capsule = ctypes.pythonapi.PyCapsule_New
_from_dlpack = tf.experimental.dlpack.from_dlpack
_capsule.restype = ctypes.py_object
_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class _ElementLayout(ctypes.Structure):
    """`ElementLayout` of `outfeed_rows.cc`."""

    _Numbers = ctypes.POINTER(ctypes.c_int64)
    _fields_ = (
        ("number", ctypes.c_int64),
        ("leaves", ctypes.c_int64),
        ("types", _Numbers),
        ("bytes", _Numbers),
        ("ranks", _Numbers),
        ("sizes", _Numbers),
    )


class _OutputBuffer(NamedTuple):
    """The tensors of an element that has not come: nobody has seen them before their values are there."""

    replicas: int
    element: Nested
    values: ctypes.Array[ctypes.c_void_p]


class PreallocatedOutput:
    """The tensors that the reader of a queue has allocated for the next element; not thread-safe."""

    def __init__(self) -> None:
        self.place: _OutputBuffer | None = None


class RowReader:
    """Takes elements of one layout. Thread-safe."""

    def __init__(
        self,
        number: int,
        types: list[tf.DType],
        shapes: list[tf.TensorShape],
        pack: Callable[[list[tf.Tensor]], Nested],
    ) -> None:
        """Describes the layout as the library wants it."""
        codes = [_TYPES[type_] for type_ in types]
        numbers = (
            [code | bits << 8 for code, bits in codes],
            [shape.num_elements() * type_.size for shape, type_ in zip(shapes, types, strict=True)],
            [shape.rank for shape in shapes],
            [size for shape in shapes for size in shape],
        )
        self._pack = pack
        self._leaves = len(types)
        self._bytes = sum(numbers[1])
        self._layout = _ElementLayout(number, self._leaves, *((ctypes.c_int64 * len(of))(*of) for of in numbers))
        self._at = ctypes.byref(self._layout)

    @staticmethod
    def serves(types: list[tf.DType]) -> bool:
        """Whether DLPack has all of these types."""
        return all(type_ in _TYPES for type_ in types)

    def take(self, number: int, timeout_us: int, most: int, preallocated: PreallocatedOutput) -> Taken | None:
        """Takes the first elements of a queue."""
        most = min(most, MOST)
        if timeout_us and (place := self._place(number, preallocated)):
            first = (place.replicas, place.values)
        else:
            place, first = None, (0, None)
        found = (ctypes.c_void_p * (most * self._leaves))()
        count = native.ipu_outfeed_rows(number, timeout_us, self._at, most, *first, found)
        if place and count:
            preallocated.place = None
            if count == 1:
                return place.element, ()
        if count < 0:
            return None
        if place and count:
            return place.element, self._tensors(found, count - 1)
        rows = self._tensors(found, count)
        return (self._pack(rows[0]), rows[1:]) if rows else (None, ())

    def take_stacked(self, number: int, timeout_us: int, most: int) -> list[tf.Tensor] | None:
        """Takes the first elements of a queue, for each leaf a tensor whose rows they are."""
        found = (ctypes.c_void_p * self._leaves)()
        if native.ipu_outfeed_stacked(number, timeout_us, self._at, most, found) < 0:
            return None
        return self._tensors(found, 1)[0]

    def _place(self, number: int, preallocated: PreallocatedOutput) -> _OutputBuffer | None:
        """The place for the next element of a queue; None where it gets its tensors when it is there."""
        replicas = native.ipu_outfeed_replicas(number)
        if replicas == 0 or self._bytes * replicas > _MOST_BYTES_AHEAD:
            return None
        if preallocated.place is None or preallocated.place.replicas != replicas:
            tensors, values = ((ctypes.c_void_p * self._leaves)() for _ in range(2))
            made = native.ipu_outfeed_place(self._at, replicas, tensors, values)
            preallocated.place = (
                _OutputBuffer(replicas, self._pack(self._tensors(tensors, 1)[0]), values) if made else None
            )
        return preallocated.place

    def _tensors(self, found: ctypes.Array[ctypes.c_void_p], count: int) -> list[list[tf.Tensor]]:
        if count == 0:
            return []
        tensors = [_from_dlpack(_capsule(one, b"dltensor", None)) for one in found[: count * self._leaves]]
        return [tensors[at : at + self._leaves] for at in range(0, len(tensors), self._leaves)]


def describe(nested: Nested) -> str:
    """Describes a structure in text, its containers by type, its tensors by dtype and shape."""
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
    """Returns the layout of an element that is being enqueued, and its flat tensors."""
    flat = []
    for index, value in enumerate(tf.nest.flatten(tensors)):
        if value is None or (isinstance(value, tf.__internal__.CompositeTensor) and not isinstance(value, tf.Variable)):
            raise TypeError(f"`tensors` holds {value!r} at position {index}; an outfeed takes dense tensors alone")
        tensor = tf.convert_to_tensor(value)
        if tensor.dtype in _REFUSED:
            raise TypeError(
                f"`tensors` holds a tensor of type {tensor.dtype.name} at position {index}, which an IPU does not hand to"
                f" the host: {elements.for_type(tensor.dtype)}"
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
    """Registers a layout. Returns the one by which this process knows elements of its number."""
    return _layouts.setdefault(layout.number, layout)


def paths(nested: Nested, path: tuple[object, ...] = ()) -> list[tuple[tuple[object, ...], Nested]]:
    """Returns the tensors of a structure in `tf.nest` order, each with the keys and positions that lead to it."""
    if isinstance(nested, Mapping):
        return [found for key in sorted(nested) for found in paths(nested[key], (*path, key))]
    if isinstance(nested, (list, tuple)):
        return [found for at, one in enumerate(nested) for found in paths(one, (*path, at))]
    return [(path, nested)]


def numbered(number: int) -> ElementLayout:
    """Returns the layout of a number that came back from a program of this process."""
    return _layouts[number]
