"""A text for a structure of tensor specs, equal where the structures are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import tensorflow as tf

if TYPE_CHECKING:
    from tensorflow_ipu._types import Nested


def describe(nested: Nested) -> str:
    """Describes a structure: its containers by their types, its tensors by dtype and shape.

    Dicts are equal in whatever order they were filled. A named tuple is no tuple, though Python has the two be equal.

    Args:
      nested: A structure of `tf.TensorSpec`.
    """
    if isinstance(nested, tf.TensorSpec):
        return f"{nested.dtype.name}{nested.shape}"
    kind = f"{type(nested).__module__}.{type(nested).__qualname__}"
    if isinstance(nested, Mapping):
        return f"{kind}{{{', '.join(f'{key!r}: {describe(nested[key])}' for key in sorted(nested))}}}"
    if isinstance(nested, (list, tuple)):
        return f"{kind}({', '.join(map(describe, nested))})"
    return repr(nested)
