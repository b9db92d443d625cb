"""Finds the length of ranges such as `i:i + 8` in slices of programs, so that these have a static shape."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tensorflow_ipu._tensorflow import graphs
from tensorflow_ipu.programs import _trace_context

# The lowering to XLA reads the length of each range here: its end less its begin, 0 if it is unknown.
_LENGTHS = "_ipu_lengths"

_DEEPEST = 20  # Sums that contain longer chains of operations count as one term.

# A whole number as a sum: factors by term, and a constant by None. A term is the number of a tensor (`id`), and whether
# that is an argument of the program. `(i + 1) * 4 -> {(id(i), False): 4, None: 4}`
_Sum = dict[tuple[int, bool] | None, int]

# The operations that this module notes the lengths of.
SLICING = frozenset({"ResourceStridedSliceAssign", "StridedSlice", "TensorStridedSliceUpdate"})


def note_lengths(op: tf.Operation) -> None:
    """Notes the lengths of the ranges of a slice, and gives a result the shape that follows."""
    result = op.outputs[0] if op.type == "StridedSlice" else None
    if result is not None and (result.shape.rank is None or result.shape.is_fully_defined()):
        return
    begins, ends = (_numbers(tensor) for tensor in op.inputs[1:3])
    strides = tf.get_static_value(op.inputs[3])
    if begins is None or ends is None or strides is None:
        return
    axes = _axes(op, len(strides))
    lengths = [0] * len(axes)
    for at, (begin, end, stride) in enumerate(zip(begins, ends, map(int, strides), strict=True)):
        axis = axes[at]
        if axis is None:
            continue
        size = None if result is None else op.inputs[0].shape[axis.sliced]
        lengths[at] = _length(begin if axis.begins else None, end if axis.ends else None, stride, size)
        if result is not None and lengths[at]:
            axis.elements = len(range(0, lengths[at], stride))
            if size is None or (axis.elements - 1) * abs(stride) >= size:
                return  # It may be longer than its axis, and so never whole.
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
    """Returns the end less the begin; 0 if it is unknown, or if there is nothing between them."""
    if not {*(begin or ()), *(end or ())} - {None} and size is not None:
        first, last = (None if place is None else place.get(None, 0) for place in (begin, end))
        return stride * len(range(*slice(first, last, stride).indices(size)))
    # XLA takes an argument of the program for a constant, and the range for what it is in that call.
    if begin is None or end is None or all(term is None or term[1] for term in begin):
        return 0
    difference = _added(end, begin, -1)
    constant = difference.pop(None, 0)
    return constant if not difference and constant * stride > 0 else 0


def _is_argument(tensor: tf.Tensor) -> bool:
    if not hasattr(tensor, "graph"):
        return True
    return tensor.op.type == "Placeholder" and _trace_context.is_of_program(tensor.graph)


@dataclasses.dataclass
class _Axis:
    sliced: int  # Of the sliced tensor.
    result: int  # Of the slice.
    begins: bool
    ends: bool
    elements: int | None = None  # Of the slice, if they are known.


def _axes(op: tf.Operation, places: int) -> list[_Axis | None]:
    """Returns the axis of each range; None for other places, such as an index."""
    begin, end, ellipsis, new_axis, shrink_axis = (
        op.get_attr(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    )
    rank = op.inputs[0].shape.rank or 0
    added = sum(new_axis >> at & 1 for at in range(places))
    left_out = rank - (places - added - 1)  # The axes that the ellipsis stands for.
    axes: list[_Axis | None] = []
    sliced, result = 0, 0
    for at in range(places):
        has = {
            name: mask >> at & 1 for name, mask in (("ellipsis", ellipsis), ("new", new_axis), ("index", shrink_axis))
        }
        begins, ends = (not mask >> at & 1 for mask in (begin, end))
        axes.append(None if any(has.values()) else _Axis(sliced, result, begins, ends))
        steps = left_out if has["ellipsis"] else 1
        sliced += 0 if has["new"] else steps
        result += 0 if has["index"] else steps
    return axes


def _numbers(tensor: tf.Tensor) -> list[_Sum] | None:
    """Returns the begins or the ends of a slice; None if they are not separate numbers."""
    value = tf.get_static_value(tensor)
    if value is not None:
        return [{None: int(number)} for number in value]
    return [_sum_of(scalar, _DEEPEST) for scalar in tensor.op.inputs] if tensor.op.type == "Pack" else None


def _sum_of(scalar: tf.Tensor, deepest: int) -> _Sum:
    """Returns a whole number as a sum."""
    scalar = _trace_context.source_of(scalar)
    value = tf.get_static_value(scalar) if hasattr(scalar, "graph") else None
    if value is not None:
        return {None: int(value)}
    kind = scalar.op.type if hasattr(scalar, "graph") and deepest else ""
    if kind in ("Add", "AddV2", "Mul", "Sub"):
        one, other = (_sum_of(tensor, deepest - 1) for tensor in scalar.op.inputs)
        if kind != "Mul":
            return _added(one, other, -1 if kind == "Sub" else 1)
        if set(one) <= {None}:
            one, other = other, one
        if set(other) <= {None}:
            return _added({}, one, other.get(None, 0))
    elif kind == "Neg":
        return _added({}, _sum_of(scalar.op.inputs[0], deepest - 1), -1)
    elif kind in ("Cast", "Identity") and scalar.op.inputs[0].dtype.is_integer:
        return _sum_of(scalar.op.inputs[0], deepest - 1)
    return {(id(scalar), _is_argument(scalar)): 1}


def _added(one: _Sum, other: _Sum, factor: int) -> _Sum:
    """Returns `one + factor * other`."""
    terms = {term: one.get(term, 0) + factor * other.get(term, 0) for term in {**one, **other}}
    return {term: times for term, times in terms.items() if times}
