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
        "Options of every convolution by name, names and values both text. `partialsType`, `half` or `float`, is the type"
        " in which those of float16 sum up. `availableMemoryProportion` is the share of an IPU's memory, from 0 to 1, that"
        " one may use for intermediate values. Results depend on no other than the first.",
        effect=Effect.ACTS,
    )


class Matmuls(Category):
    """Matrix multiplications."""

    clear_pass_type = Option(
        False,
        "Whether the library is kept from knowing if a multiplication belongs to the forward or backward pass, which"
        " can save memory.",
    )
    poplar_options = Option(
        _NONE,
        "Options of every matrix multiplication by name, names and values both text. `partialsType`, `half` or `float`,"
        " is the type in which those of float16 sum up. `availableMemoryProportion` is the share of an IPU's memory, from"
        " 0 to 1, that one may use for intermediate values. Results depend on no other than the first.",
        effect=Effect.ACTS,
    )


class Pooling(Category):
    """Pooling."""

    poplar_options = Option(_NONE, "Options of every pooling operation by name, names and values both text.")


class Slices(Category):
    """Slices and embedding look-ups."""

    poplar_options = Option(
        _NONE,
        "Options of every slice, look-up and update by name, names and values both text. `availableMemoryProportion`"
        " is the share of an IPU's memory, from 0 to 1, that one may use for intermediate values.",
    )
