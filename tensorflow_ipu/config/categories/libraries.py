"""Options that are passed on to the libraries behind operations."""

from __future__ import annotations

from typing import Any

from tensorflow_ipu.config._metadata import Effect
from tensorflow_ipu.config._tree import Category, Option

# Typed here once: the contents are open until the system is configured, when they must be text by text.
_NONE: dict[str, Any] = {}


class Convolutions(Category):
    """Convolutions."""

    poplar_options = Option(
        _NONE,
        "Options of all convolutions, as text. `partialsType`, `half` or `float`: the type in which float16 sums"
        " up; results depend on no other option. `availableMemoryProportion`: share of an IPU's memory, 0 to 1, for"
        " intermediate values.",
        effect=Effect.ACTS,
    )


class Matmuls(Category):
    """Matrix multiplications."""

    clear_pass_type = Option(
        False,
        "Hides from the library which pass a multiplication belongs to, which can save memory.",
    )
    poplar_options = Option(
        _NONE,
        "Those of `convolutions.poplar_options`, for all matrix multiplications.",
        effect=Effect.ACTS,
    )


class Pooling(Category):
    """Pooling."""

    poplar_options = Option(_NONE, "Options of all pooling operations, as text.")


class Slices(Category):
    """Slices and embedding look-ups."""

    poplar_options = Option(
        _NONE,
        "Options of all slices, look-ups and updates, as text. `availableMemoryProportion`: share of an IPU's"
        " memory, 0 to 1, for intermediate values.",
    )
