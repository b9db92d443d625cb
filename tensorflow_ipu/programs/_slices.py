"""Gives slices such as `x[i:i + 8]` a static shape, although the program computes their begin.

XLA needs the shape of each slice at compile time. The begin and the end of `x[i:i + 8]` are unknown then, but their
difference is 8. To find it, this module writes both as sums of integer multiples of tensors, and subtracts the sums:

    i            -> {i: 1}
    (i + 1) * 8  -> {i: 8, constant: 8}
    x[i * 8:(i + 1) * 8]:  {i: 8, constant: 8} - {i: 8} = {constant: 8}

The length is static if only the constant remains. It is stored as an attribute of the operation for the lowering to
XLA. Each scalar costs a walk over the additions and products that compute it, up to `_DEEPEST` of them on a path.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tensorflow_ipu._tensorflow import graphs
from tensorflow_ipu.programs import _trace_context

# The lowering to XLA reads the length of each range from this attribute: its end minus its begin, or 0 if unknown.
_LENGTHS = "_ipu_lengths"

_DEEPEST = 20  # Operations beyond this depth are not analyzed; their result is one term.

# An integer scalar as a sum: the factor of each term, and the constant under None. A term is the `id` of a tensor, and
# whether that tensor is an argument of the program. Example: `(i + 1) * 4 -> {(id(i), False): 4, None: 4}`
_Sum = dict[tuple[int, bool] | None, int]

# The operations whose lengths this module finds.
SLICING = frozenset({"ResourceStridedSliceAssign", "StridedSlice", "TensorStridedSliceUpdate"})


def note_lengths(op: tf.Operation) -> None:
    """Stores the lengths of a slice's ranges as an attribute, and sets the static shape of its result."""
    result = op.outputs[0] if op.type == "StridedSlice" else None
    if result is not None and (result.shape.rank is None or result.shape.is_fully_defined()):
        return
    begins, ends = (_positions(tensor) for tensor in op.inputs[1:3])
    strides = tf.get_static_value(op.inputs[3])
    if begins is None or ends is None or strides is None:
        return
    axes = _axes(op, len(strides))
    lengths = [0] * len(axes)
    for index, (begin, end, stride) in enumerate(zip(begins, ends, map(int, strides), strict=True)):
        axis = axes[index]
        if axis is None:
            continue
        size = None if result is None else op.inputs[0].shape[axis.sliced]
        lengths[index] = _length(begin if axis.begins else None, end if axis.ends else None, stride, size)
        if result is not None and lengths[index]:
            axis.elements = len(range(0, lengths[index], stride))
            if size is None or (axis.elements - 1) * abs(stride) >= size:
                return  # The range may be longer than its axis, which would shorten the result.
    if not any(lengths):
        return
    attribute = tf.compat.v1.AttrValue
    graphs.set_attribute(op, _LENGTHS, attribute(list=attribute.ListValue(i=lengths)))
    if result is not None:
        shape = result.shape.as_list()
        for axis in filter(None, axes):
            shape[axis.result] = axis.elements or shape[axis.result]
        result.set_shape(shape)


def _length(begin: _Sum | None, end: _Sum | None, stride: int, size: int | None) -> int:
    """Returns the end minus the begin, or 0 if it is unknown or the range is empty."""
    if not {*(begin or ()), *(end or ())} - {None} and size is not None:
        first, last = (None if position is None else position.get(None, 0) for position in (begin, end))
        return stride * len(range(*slice(first, last, stride).indices(size)))
    # If the begin depends on arguments only, XLA compiles their values as constants and finds the range itself.
    if begin is None or end is None or all(term is None or term[1] for term in begin):
        return 0
    difference = _weighted_sum(end, begin, -1)
    constant = difference.pop(None, 0)
    return constant if not difference and constant * stride > 0 else 0


def _is_argument(tensor: tf.Tensor) -> bool:
    if not hasattr(tensor, "graph"):
        return True
    return tensor.op.type == "Placeholder" and _trace_context.is_of_program(tensor.graph)


@dataclasses.dataclass
class _Axis:
    sliced: int  # The axis of the sliced tensor.
    result: int  # The axis of the result.
    begins: bool  # False in `[:end]`.
    ends: bool  # False in `[begin:]`.
    elements: int | None = None  # The size of the result along this axis, if known.


def _axes(op: tf.Operation, entries: int) -> list[_Axis | None]:
    """Returns the axis of each range among the slice's entries; None for an index, an ellipsis or a new axis."""
    begin, end, ellipsis, new_axis, shrink_axis = (
        op.get_attr(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    )
    rank = op.inputs[0].shape.rank or 0
    new_axes = sum(new_axis >> entry & 1 for entry in range(entries))
    omitted = rank - (entries - new_axes - 1)  # The axes that the ellipsis represents.
    axes: list[_Axis | None] = []
    sliced, result = 0, 0
    for entry in range(entries):
        has = {
            name: mask >> entry & 1
            for name, mask in (("ellipsis", ellipsis), ("new", new_axis), ("index", shrink_axis))
        }
        begins, ends = (not mask >> entry & 1 for mask in (begin, end))
        axes.append(None if any(has.values()) else _Axis(sliced, result, begins, ends))
        steps = omitted if has["ellipsis"] else 1
        sliced += 0 if has["new"] else steps
        result += 0 if has["index"] else steps
    return axes


def _positions(tensor: tf.Tensor) -> list[_Sum] | None:
    """Returns the begins or the ends of a slice as sums, or None if they are not packed from scalars."""
    value = tf.get_static_value(tensor)
    if value is not None:
        return [{None: int(number)} for number in value]
    return [_sum_of(scalar, _DEEPEST) for scalar in tensor.op.inputs] if tensor.op.type == "Pack" else None


def _sum_of(scalar: tf.Tensor, deepest: int) -> _Sum:
    scalar = _trace_context.source_of(scalar)
    value = tf.get_static_value(scalar) if hasattr(scalar, "graph") else None
    if value is not None:
        return {None: int(value)}
    kind = scalar.op.type if hasattr(scalar, "graph") and deepest else ""
    if kind in ("Add", "AddV2", "Mul", "Sub"):
        first, second = (_sum_of(tensor, deepest - 1) for tensor in scalar.op.inputs)
        if kind != "Mul":
            return _weighted_sum(first, second, -1 if kind == "Sub" else 1)
        if set(first) <= {None}:
            first, second = second, first
        if set(second) <= {None}:
            return _weighted_sum({}, first, second.get(None, 0))
    elif kind == "Neg":
        return _weighted_sum({}, _sum_of(scalar.op.inputs[0], deepest - 1), -1)
    elif kind in ("Cast", "Identity") and scalar.op.inputs[0].dtype.is_integer:
        return _sum_of(scalar.op.inputs[0], deepest - 1)
    return {(id(scalar), _is_argument(scalar)): 1}


def _weighted_sum(first: _Sum, second: _Sum, weight: int) -> _Sum:
    """Returns `first + weight * second`."""
    terms = {term: first.get(term, 0) + weight * second.get(term, 0) for term in {**first, **second}}
    return {term: factor for term, factor in terms.items() if factor}
