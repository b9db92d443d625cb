"""What a function was traced for: its arguments as plain data, to say in words what differs between two traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf
from tensorflow.core.function.trace_type import default_types

if TYPE_CHECKING:
    from tensorflow_ipu._tensorflow.functions import ConcreteFunction


class Leaf(NamedTuple):
    """One part of an argument.

    Attributes:
      kind: `"tensor"`, `"value"` (of Python), `"object"` (of Python, compared by identity) or `"other"`.
      text: All of it, as text.
      shape: Of a tensor; None where its rank is not known.
      dtype: Of a tensor: its name. Of a value or object: that of its class.
    """

    kind: str
    text: str
    shape: tuple[int | None, ...] | None = None
    dtype: str = ""


def leaves_of(program: ConcreteFunction) -> dict[str, Leaf]:
    """The parts of the arguments that a function was traced for, by how they are spelled: `x`, `data['image'][0]`.

    Stands on the classes in `trace_type.default_types`: the public `tf.types.experimental.FunctionType` of a concrete
    function gives a `TraceType` for each argument, which can be compared and not read. When they are gone: the text of
    each `TraceType`, which is of kind `"other"`.
    """
    leaves: dict[str, Leaf] = {}
    for name, parameter in program.function_type.parameters.items():
        _add(leaves, name, parameter.type_constraint)
    return leaves


def leaves_of_spec(name: str, spec: object) -> dict[str, Leaf]:
    """The same of a structure of `tf.TensorSpec`; see `leaves_of`."""
    leaves: dict[str, Leaf] = {}
    for path, part in enumerate(tf.nest.flatten(spec)):
        _add(leaves, f"{name}[{path}]", part)
    return leaves


def _add(leaves: dict[str, Leaf], path: str, part: Any) -> None:
    """Adds the parts of an argument; see `leaves_of`."""
    if isinstance(part, tf.TensorSpec):
        shape = None if part.shape.rank is None else tuple(part.shape.as_list())
        leaves[path] = Leaf("tensor", f"{part.dtype.name}{part.shape}", shape, part.dtype.name)
    elif isinstance(part, default_types.Literal):
        leaves[path] = Leaf("value", repr(part.value), dtype=type(part.value).__name__)
    elif isinstance(part, default_types.Weakref):
        held = part._ref()
        leaves[path] = Leaf("object", str(id(held)), dtype=type(held).__name__)
    elif isinstance(part, default_types.Dict):
        for key, below in part.mapping.items():
            _add(leaves, f"{path}[{key!r}]", below)
    elif isinstance(part, default_types.List):
        _add(leaves, path, part.components_tuple)
    elif isinstance(part, default_types.Tuple):
        for index, below in enumerate(part.components):
            _add(leaves, f"{path}[{index}]", below)
    elif isinstance(part, tf.TypeSpec) and hasattr(part, "element_spec"):
        elements: Any = part  # Of a dataset's iterator, or of a queue.
        leaves[path] = Leaf("other", type(part).__name__)
        for index, below in enumerate(tf.nest.flatten(elements.element_spec)):
            _add(leaves, f"the elements of {path}, [{index}]", below)
    else:
        leaves[path] = Leaf("other", str(part))
