"""Reads serialized HLO, the language that XLA compiles. No other module uses its protocol buffers."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from typing import Any

_HALVES_OF_BYTES = {"pred": 2, "s2": 1, "u2": 1, "s4": 1, "u4": 1, "token": 0, "opaque_type": 0}
# XLA prints the attributes of a call as text, such as `{kind = 0 : i64, orthogonal = false}`.
_ATTRIBUTE = re.compile(r"(\w+) = (-?\d+|true|false)\b")
_LITERALS = {"s32": "s32s", "s64": "s64s", "u32": "u32s", "u64": "u64s", "pred": "preds"}


@dataclass(frozen=True)
class Shape:
    """The type and dimensions of an array, or the parts of a tuple."""

    dtype: str
    dimensions: tuple[int, ...] = ()
    parts: tuple[Shape, ...] = ()

    @property
    def elements(self) -> int:
        """The number of elements of the array, or of all arrays of the tuple."""
        return sum(part.elements for part in self.parts) if self.dtype == "tuple" else math.prod(self.dimensions)

    @functools.cached_property
    def item_bytes(self) -> int:
        return 0 if self.dtype == "tuple" else _item_bytes(self.dtype)

    @functools.cached_property
    def bytes(self) -> int:
        """The size of the array, or of all arrays of the tuple."""
        if self.dtype == "tuple":
            return sum(part.bytes for part in self.parts)
        return self.item_bytes * math.prod(self.dimensions)

    def __str__(self) -> str:
        if self.dtype == "tuple":
            return f"({', '.join(map(str, self.parts))})"
        return f"{self.dtype}[{','.join(map(str, self.dimensions))}]"


@functools.cache
def _item_bytes(dtype: str) -> int:
    if dtype in _HALVES_OF_BYTES:
        return math.ceil(_HALVES_OF_BYTES[dtype] / 2)
    digits = dtype.lstrip("abcdefghijklmnopqrstuvwxyz")  # `f32`, `bf16`, `c64`, `f8e4m3fn`.
    bits = int("".join(c for c in digits.split("e")[0] if c.isdigit()) or 32)
    return max(1, bits // 8)


@dataclass(eq=False)
class HloInstruction:
    name: str
    opcode: str
    shape: Shape
    operands: tuple[HloInstruction, ...]
    called: tuple[Computation, ...]
    scope: str
    number: int
    _proto: Any

    @property
    def title(self) -> str:
        """The name of the TensorFlow operation, or else the name in the program."""
        return self.scope or self.name

    @property
    def target(self) -> str:
        """The function that a `custom-call` calls."""
        return self._proto.custom_call_target

    @property
    def direction(self) -> str:
        """The direction of a `compare`: `LT`, `LE`, `GT`, `GE`, `EQ` or `NE`."""
        return self._proto.comparison_direction

    @property
    def constant(self) -> int | None:
        """The value of a scalar `constant` of integer or boolean type; None for any other operation."""
        kind = _LITERALS.get(self.shape.dtype)
        if self.opcode != "constant" or kind is None or self.shape.dimensions:
            return None
        values = getattr(self._proto.literal, kind)
        return int(values[0]) if values else 0

    @property
    def attributes(self) -> dict[str, int]:
        """The integers and booleans among the attributes of a `custom-call`, by name."""
        text = self._proto.backend_config.decode("utf-8", "replace")
        booleans = {"true": 1, "false": 0}
        return {name: booleans[value] if value in booleans else int(value) for name, value in _ATTRIBUTE.findall(text)}

    def attribute(self, name: str) -> str | None:
        """Returns a frontend attribute, as set by `scopes.frontend_attribute`; None if it is not set."""
        return self._proto.frontend_attributes.map.get(name)

    @property
    def permutation(self) -> tuple[int, ...]:
        """The dimension of the operand that each dimension of a `transpose` reads."""
        return tuple(self._proto.dimensions)

    @property
    def window_elements(self) -> int:
        """The number of positions that the window covers."""
        return math.prod(dimension.size for dimension in self._proto.window.dimensions)

    @property
    def product(self) -> Product:
        return _dot(self) if self.opcode == "dot" else _convolution(self)


@dataclass(eq=False)
class Computation:
    name: str
    operations: tuple[HloInstruction, ...]
    root: HloInstruction


@dataclass(frozen=True)
class Product:
    """A product of matrices of rows x depth and depth x columns, for each group; or a convolution in this form."""

    groups: int
    rows: int
    columns: int
    depth: int
    item_bytes: int

    @property
    def macs(self) -> int:
        return self.groups * self.rows * self.columns * self.depth


def _dot(operation: HloInstruction) -> Product:
    dimensions = operation._proto.dot_dimension_numbers
    left, right = (operand.shape for operand in operation.operands)
    groups = math.prod(left.dimensions[dimension] for dimension in dimensions.lhs_batch_dimensions)
    depth = math.prod(left.dimensions[dimension] for dimension in dimensions.lhs_contracting_dimensions)
    share = max(1, groups * depth)
    item = min(left.item_bytes, right.item_bytes)
    return Product(max(1, groups), left.elements // share, right.elements // share, max(1, depth), item)


def _convolution(operation: HloInstruction) -> Product:
    dimensions = operation._proto.convolution_dimension_numbers
    image, kernel = (operand.shape for operand in operation.operands)
    groups = max(1, operation._proto.feature_group_count) * max(1, operation._proto.batch_group_count)
    channels = kernel.dimensions[dimensions.kernel_output_feature_dimension]
    depth = kernel.dimensions[dimensions.kernel_input_feature_dimension]
    depth *= math.prod(kernel.dimensions[dimension] for dimension in dimensions.kernel_spatial_dimensions)
    # Gradients of strided convolutions dilate the image. Most of its positions are then zeros, which the machine skips.
    depth /= math.prod(max(1, window.base_dilation) for window in operation._proto.window.dimensions)
    rows = operation.shape.elements // max(1, channels)
    item = min(image.item_bytes, kernel.item_bytes)
    return Product(groups, max(1, rows), max(1, channels // groups), max(1, math.ceil(depth)), item)


def read(serialized: bytes, halved: bool = False) -> Computation:
    from tensorflow_ipu._tensorflow.xla import HloModuleProto  # Imported late, as saved reports need no TensorFlow.

    module = HloModuleProto()
    try:
        module.ParseFromString(serialized)
    except Exception as exc:
        raise ValueError("this is not a serialized HLO module") from exc
    computations: dict[int, Computation] = {}
    for proto in module.computations:  # A computation follows all computations that it calls.
        computations[proto.id] = _computation(proto, computations)
    if module.entry_computation_id not in computations:
        raise ValueError("this is not a serialized HLO module: it has no entry computation")
    if halved:
        for operation in (member for computation in computations.values() for member in computation.operations):
            operation.shape = _halved(operation.shape)
    return computations[module.entry_computation_id]


def _halved(shape: Shape) -> Shape:
    parts = tuple(_halved(part) for part in shape.parts)
    return Shape("f16" if shape.dtype == "f32" else shape.dtype, shape.dimensions, parts)


def _computation(proto: Any, computations: dict[int, Computation]) -> Computation:
    operations: dict[int, HloInstruction] = {}
    for instruction in proto.instructions:
        called = tuple(computations[number] for number in instruction.called_computation_ids)
        if instruction.opcode == "call" and called[0].root.opcode == "parameter":  # It only returns an argument.
            operations[instruction.id] = operations[instruction.operand_ids[called[0].root.number]]
            continue
        if instruction.opcode == "while" and called[0].root.shape.dtype == "pred":
            called = called[::-1]  # The body, then the condition.
        operations[instruction.id] = HloInstruction(
            name=instruction.name,
            opcode=instruction.opcode,
            shape=_shape(instruction.shape),
            operands=tuple(operations[number] for number in instruction.operand_ids),
            called=called,
            scope=instruction.metadata.op_name,
            number=instruction.parameter_number if instruction.opcode == "parameter" else instruction.tuple_index,
            _proto=instruction,
        )
    return Computation(proto.name, tuple(dict.fromkeys(operations.values())), operations[proto.root_id])


_array_shape = functools.cache(Shape)


@functools.cache
def _type_name(number: int) -> str:
    from tensorflow_ipu._tensorflow.xla import PrimitiveType

    return PrimitiveType.Name(number).lower()


def _shape(proto: Any) -> Shape:
    name = _type_name(proto.element_type)
    if name == "tuple":
        return Shape(name, (), tuple(_shape(part) for part in proto.tuple_shapes))
    return _array_shape(name, tuple(proto.dimensions))
