"""The layouts of an outfeed's elements: structure, types and shapes, under a number that programs store."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from tensorflow_ipu._base.types import Nested
from tensorflow_ipu._native.library import native
from tensorflow_ipu.feeds import elements

# (first element or None if the queue is empty, flat tensors of each further element)
Taken = tuple[Nested, Sequence[list[tf.Tensor]]]

# The types that TensorFlow imports by DLPack: DLPack's type code and the bits of a value.
# https://github.com/dmlc/dlpack
_TYPES = {
    tf.bool: (6, 8),
    tf.bfloat16: (4, 16),
    tf.float16: (2, 16),
    tf.float32: (2, 32),
    **{tf.as_dtype(f"int{bits}"): (0, bits) for bits in (8, 16, 32, 64)},
    **{tf.as_dtype(f"uint{bits}"): (1, bits) for bits in (8, 16, 32, 64)},
}

# The most elements that one call takes. A higher limit would not be faster, and if an iteration ended early, the elements
# that were taken but not read would use memory.
MOST = 64

# Tensors are preallocated, during the wait, for elements of up to this number of bytes. Copying a larger element takes
# longer than allocating its tensors, and a reader that has read all elements would keep the memory.
_MAX_PREALLOCATED_BYTES = 64 << 10

_capsule = ctypes.pythonapi.PyCapsule_New
_from_dlpack = tf.experimental.dlpack.from_dlpack
_capsule.restype = ctypes.py_object
_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class _ElementLayout(ctypes.Structure):
    """The struct `ElementLayout` of `kernels/control/outfeed_rows.cc`."""

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
    """Preallocated tensors for the next element. The native code writes `values` before a reader gets the tensors."""

    replicas: int
    element: Nested
    values: ctypes.Array[ctypes.c_void_p]


class PreallocatedOutput:
    """The output buffer that the reader of a queue has allocated for the next element. Not thread-safe."""

    def __init__(self) -> None:
        self.buffer: _OutputBuffer | None = None


class RowReader:
    """Dequeues elements of one layout without running a TensorFlow operation. Thread-safe.

    A TensorFlow operation takes longer than waking the reader. So the native code copies elements into new
    memory, and TensorFlow imports that memory by DLPack without another copy. To save time after an element arrives,
    `take` allocates the tensors of a small element before it waits:

        allocate tensors -> wait -> copy the values -> return the tensors

    Further elements that are ready are returned by the same call, each in new tensors.
    """

    def __init__(
        self,
        number: int,
        types: list[tf.DType],
        shapes: list[tf.TensorShape],
        pack: Callable[[list[tf.Tensor]], Nested],
    ) -> None:
        codes = [_TYPES[type_] for type_ in types]
        arrays = (
            [code | bits << 8 for code, bits in codes],
            [shape.num_elements() * type_.size for shape, type_ in zip(shapes, types, strict=True)],
            [shape.rank for shape in shapes],
            [size for shape in shapes for size in shape],
        )
        self._pack = pack
        self._leaves = len(types)
        self._bytes = sum(arrays[1])
        self._layout = _ElementLayout(
            number, self._leaves, *((ctypes.c_int64 * len(array))(*array) for array in arrays)
        )
        self._layout_pointer = ctypes.byref(self._layout)

    @staticmethod
    def supports(types: list[tf.DType]) -> bool:
        """Returns True if TensorFlow can import all of these types by DLPack."""
        return all(type_ in _TYPES for type_ in types)

    def take(self, number: int, timeout_us: int, limit: int, preallocated: PreallocatedOutput) -> Taken | None:
        """Takes up to `limit` elements of a queue. Returns None, and takes nothing, if an operation is needed."""
        limit = min(limit, MOST)
        if timeout_us and (buffer := self._buffer(number, preallocated)):
            first = (buffer.replicas, buffer.values)
        else:
            buffer, first = None, (0, None)
        pointers = (ctypes.c_void_p * (limit * self._leaves))()
        count = native.ipu_outfeed_rows(number, timeout_us, self._layout_pointer, limit, *first, pointers)
        if buffer and count:
            preallocated.buffer = None
            if count == 1:
                return buffer.element, ()
        if count < 0:
            return None
        if buffer and count:
            return buffer.element, self._tensors(pointers, count - 1)
        rows = self._tensors(pointers, count)
        return (self._pack(rows[0]), rows[1:]) if rows else (None, ())

    def take_stacked(self, number: int, timeout_us: int, limit: int) -> list[tf.Tensor] | None:
        """Takes up to `limit` elements as `take` does, and returns one tensor per leaf, with an element in each row."""
        pointers = (ctypes.c_void_p * self._leaves)()
        if native.ipu_outfeed_stacked(number, timeout_us, self._layout_pointer, limit, pointers) < 0:
            return None
        return self._tensors(pointers, 1)[0]

    def _buffer(self, number: int, preallocated: PreallocatedOutput) -> _OutputBuffer | None:
        """Returns the buffer for the next element of a queue, or None if its tensors are not preallocated."""
        replicas = native.ipu_outfeed_replicas(number)
        if replicas == 0 or self._bytes * replicas > _MAX_PREALLOCATED_BYTES:
            return None
        if preallocated.buffer is None or preallocated.buffer.replicas != replicas:
            tensors, values = ((ctypes.c_void_p * self._leaves)() for _ in range(2))
            is_allocated = native.ipu_outfeed_place(self._layout_pointer, replicas, tensors, values)
            preallocated.buffer = (
                _OutputBuffer(replicas, self._pack(self._tensors(tensors, 1)[0]), values) if is_allocated else None
            )
        return preallocated.buffer

    def _tensors(self, pointers: ctypes.Array[ctypes.c_void_p], count: int) -> list[list[tf.Tensor]]:
        if count == 0:
            return []
        tensors = [_from_dlpack(_capsule(pointer, b"dltensor", None)) for pointer in pointers[: count * self._leaves]]
        return [tensors[start : start + self._leaves] for start in range(0, len(tensors), self._leaves)]


def describe(nested: Nested) -> str:
    """Describes a structure as text, with the types of containers and the dtypes and shapes of tensors."""
    if isinstance(nested, tf.TensorSpec):
        return f"{nested.dtype.name}{nested.shape}"
    kind = f"{type(nested).__module__}.{type(nested).__qualname__}"
    if isinstance(nested, Mapping):
        return f"{kind}{{{', '.join(f'{key!r}: {describe(nested[key])}' for key in sorted(nested))}}}"
    if isinstance(nested, (list, tuple)):
        return f"{kind}({', '.join(map(describe, nested))})"
    return repr(nested)


# An IPU has no float64 and no complex types, and a program has no strings or resources.
_UNSUPPORTED = (tf.float64, tf.complex64, tf.complex128, tf.string, tf.resource, tf.variant)

_layouts: dict[int, ElementLayout] = {}


class ElementLayout:
    """The layout of an outfeed's elements, made from a structure of `tf.TensorSpec`.

    Its number is a hash of the structure, so equal layouts have the same number in every process.
    """

    def __init__(self, nested: Nested) -> None:
        flat = tf.nest.flatten(nested)
        self.nested = nested
        self.is_leaf = isinstance(nested, tf.TensorSpec)
        self.types = [spec.dtype for spec in flat]
        self.shapes = [spec.shape for spec in flat]
        self.bytes = sum(spec.shape.num_elements() * spec.dtype.size for spec in flat)
        digest = hashlib.blake2b(describe(nested).encode(), digest_size=8).digest()
        self.number = int.from_bytes(digest, "little") % (2**63 - 1) + 1
        self.row_reader: RowReader | None = None
        if RowReader.supports(self.types):
            self.row_reader = RowReader(self.number, self.types, self.shapes, self.pack)

    def pack(self, tensors: list[tf.Tensor]) -> Nested:
        """Packs flat tensors into the structure of an element."""
        if self.is_leaf:
            return tensors[0]
        return tf.nest.pack_sequence_as(self.nested, tensors)


def layout_of(tensors: Nested) -> tuple[ElementLayout, list[tf.Tensor]]:
    """Returns the layout of an element that is being enqueued, and its flat tensors."""
    flat = []
    for index, value in enumerate(tf.nest.flatten(tensors)):
        if value is None or (isinstance(value, tf.__internal__.CompositeTensor) and not isinstance(value, tf.Variable)):
            raise TypeError(f"`tensors` holds {value!r} at position {index}; an outfeed accepts dense tensors only")
        tensor = tf.convert_to_tensor(value)
        if tensor.dtype in _UNSUPPORTED:
            raise TypeError(
                f"`tensors` holds a tensor of type {tensor.dtype.name} at position {index}, which an IPU cannot send to"
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
    return registered(ElementLayout(tf.nest.pack_sequence_as(tensors, specs))), flat


def registered(layout: ElementLayout) -> ElementLayout:
    """Registers a layout, and returns the first one of this process with the same number."""
    return _layouts.setdefault(layout.number, layout)


def paths(nested: Nested, path: tuple[object, ...] = ()) -> list[tuple[tuple[object, ...], Nested]]:
    """Returns the path and the tensor of each leaf in `tf.nest` order: `{"a": [x]}` gives `[(("a", 0), x)]`."""
    if isinstance(nested, Mapping):
        return [leaf for key in sorted(nested) for leaf in paths(nested[key], (*path, key))]
    if isinstance(nested, (list, tuple)):
        return [leaf for index, part in enumerate(nested) for leaf in paths(part, (*path, index))]
    return [(path, nested)]


def layout_with_number(number: int) -> ElementLayout:
    """Returns the registered layout of a number that a program of this process has returned."""
    return _layouts[number]
