"""From the elements of any dataset to those that a feed can carry, and back in the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._tensorflow.variables import NoneSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorflow_ipu._base.types import Nested

# The type that a feed carries instead of one that IPUs do not have.
_STAND_INS = {
    tf.float64: tf.float32,
    tf.bfloat16: tf.float32,
    tf.int64: tf.int32,
    tf.uint64: tf.int32,
    tf.uint32: tf.int32,
    tf.int16: tf.int32,
    tf.uint16: tf.int32,
}


def device_dtype(dtype: tf.DType) -> tf.DType:
    """The type in which a feed carries tensors of `dtype`: the same, or the nearest that an IPU has."""
    return _STAND_INS.get(dtype, dtype)


class Elements:
    """A dataset as a feed can carry it."""

    def __init__(self, dataset: tf.data.Dataset) -> None:
        """Takes the user's dataset."""
        given = dataset.element_spec
        leaves = tf.nest.flatten(given)
        carried = [at for at, leaf in enumerate(leaves) if not _is_missing(leaf)]
        _check([leaves[at] for at in carried])
        flat = [leaves[at] for at in carried]
        types = [device_dtype(leaf.dtype) for leaf in flat]
        specs: list[tf.TensorSpec | None] = [None] * len(leaves)
        for at, leaf, dtype in zip(carried, flat, types, strict=True):
            specs[at] = tf.TensorSpec(leaf.shape, dtype)
        self.spec = _pack(given, specs)
        self.key = repr(self.spec)
        cast = types != [leaf.dtype for leaf in flat]
        self.unpack: Callable[[Nested], Nested] = _same
        # Casts take microseconds; a thread pool for them takes longer.
        if _is_plain(given):
            self.dataset = dataset.map(lambda *parts: _cast(parts, types), name="to_ipu") if cast else dataset
            return

        def flatten(*element: Nested) -> tuple[tf.Tensor, ...]:
            values = tf.nest.flatten(element)
            return tuple(tf.cast(values[at], dtype) for at, dtype in zip(carried, types, strict=True))

        def unpack(tensors: Sequence[tf.Tensor]) -> Nested:
            filled: list[tf.Tensor | None] = [None] * len(leaves)
            for at, tensor in zip(carried, tensors, strict=True):
                filled[at] = tensor
            return _pack(given, filled)

        self.dataset = dataset.map(flatten, name="to_ipu")
        self.unpack = unpack

    def of_parts(self, parts: Sequence[tf.Tensor]) -> Nested:
        """The user's element, of the tensors of one of `dataset`."""
        return parts[0] if isinstance(self.spec, tf.TensorSpec) else self.unpack(parts)


def _cast(parts: tuple[tf.Tensor, ...], types: list[tf.DType]) -> tf.Tensor | tuple[tf.Tensor, ...]:
    cast: Any = tuple(tf.cast(part, dtype) for part, dtype in zip(parts, types, strict=True))
    return cast if len(cast) > 1 else cast[0]


def _same(element: Nested) -> Nested:
    return element


def _pack(given: Nested, leaves: Sequence[object]) -> Nested:
    return tf.nest.pack_sequence_as(given, leaves)


def _is_missing(spec: object) -> bool:
    """Whether a leaf of an element stands for no data, as Keras has it for weights that are not given."""
    return isinstance(spec, (NoneSpec, tf.OptionalSpec))


def _is_plain(spec: object) -> bool:
    """Whether a feed takes elements of this structure as they are: a tensor, or a tuple of some."""
    if isinstance(spec, tf.TensorSpec):
        return True
    return type(spec) is tuple and len(spec) > 1 and all(isinstance(part, tf.TensorSpec) for part in spec)


def _check(leaves: list[object]) -> None:
    for leaf in leaves:
        if not isinstance(leaf, tf.TensorSpec):
            raise ValueError(
                f"the data holds {leaf}, and a feed carries dense tensors alone: convert it to them, for instance with"
                " `dataset.map`"
            )
        if leaf.dtype == tf.string:
            raise ValueError(
                f"the data holds strings ({leaf}), which no IPU has: turn them to numbers where the dataset is made"
            )
        if not leaf.shape.is_fully_defined():
            raise ValueError(
                f"the provided set of data contains a shape {leaf.shape} which is not fully defined, and a program for an"
                " IPU has static shapes. Give `batch` the argument `drop_remainder=True`, so that all batches are full; state"
                " the shapes of a generator or `py_function`"
            )
