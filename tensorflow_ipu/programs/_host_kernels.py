"""Marks the operations of programs that kernels of the host compute: layers where they may, and all checks."""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tensorflow_ipu._base.tensors import known_size
from tensorflow_ipu._native.library import native
from tensorflow_ipu._tensorflow import graphs, xla
from tensorflow_ipu.programs import _attributes, _slices, _trace_context
from tensorflow_ipu.programs._trace_context import is_tracing, wants_host_kernels

# By this attribute the lowering to XLA tells the nodes of a program from others; TensorFlow ignores it.
ATTRIBUTE = "_ipu_host_kernel"
_IN_LOOP = "_ipu_in_loop"

_AttrValue: Any = tf.compat.v1.AttrValue
_WHERE_FASTER = _AttrValue(s=b"where faster")
_WHEREVER_KNOWN = _AttrValue(s=b"wherever known")
# Those that end a run, which XLA leaves out.
_CHECKS = frozenset({"Assert", "CheckNumerics", "CheckNumericsV2"})
_LAYERS = frozenset(native.ipu_host_layers().decode().split()) - _CHECKS

# An `Assert` has the texts of its message by this one, since no program can hold them.
_TEXTS = "_ipu_texts"

# Of operations that XLA has no lowering of: the input that has to be known when a program is compiled.
_CONSTANTS = "_XlaCompileTimeConstantInputs"
_SHAPES = {
    "ResizeNearestNeighborGrad": b"size",
    "StatelessRandomBinomial": b"shape",
    "StatelessRandomGammaV2": b"shape",
    "StatelessRandomGammaV3": b"shape",
    "StatelessRandomPoisson": b"shape",
}

_YES = _AttrValue(b=True)
_mark = _WHERE_FASTER


def marking(plain: Callable[..., None]) -> Callable[..., None]:
    """Marks the operations of a program that the host's kernels compute, as they are made."""

    def create(self: tf.Graph, op: tf.Operation, compute_device: bool = True) -> None:
        plain(self, op, compute_device)
        _mark_if_wanted(self, op)

    return create


def _mark_if_wanted(graph: tf.Graph, op: tf.Operation) -> None:
    if op.type in _LAYERS:
        type_ = op.outputs[0].dtype if op.outputs else None
        # One that says how it is computed is not computed by TensorFlow's kernel.
        own = type_ == tf.float16 and _attributes.is_set_by_scope(graph, op)
        if _trace_context.wants_host_kernels(type_, len(op.outputs)) and not own:
            graphs.set_attribute(op, ATTRIBUTE, _mark)
            if graphs.in_loop(graph):
                graphs.set_attribute(op, _IN_LOOP, _YES)
            if op.type in _SHAPES:
                graphs.set_attribute(op, _CONSTANTS, _AttrValue(list=_AttrValue.ListValue(s=[_SHAPES[op.type]])))
    elif op.type in _CHECKS and _trace_context.is_tracing():
        graphs.set_attribute(op, ATTRIBUTE, _WHERE_FASTER)
        if op.type == "Assert":
            texts = [_text(tensor) for tensor in op.inputs[1:]]
            graphs.set_attribute(op, _TEXTS, _AttrValue(list=_AttrValue.ListValue(s=texts)))
    elif op.type in _slices.SLICING and _trace_context.is_tracing():
        _slices.note_lengths(op)


def _text(tensor: tf.Tensor) -> bytes:
    """Returns the text of a string tensor of known value; empty for others."""
    if tensor.dtype.name != "string":
        return b""
    value = tf.get_static_value(_trace_context.source_of(tensor))
    return b"..." if value is None else b" ".join(np.ravel(value).tolist())


@contextlib.contextmanager
def wherever_known() -> Iterator[None]:
    """A block in which traced programs use every host kernel there is, faster or not; for measurements and tests."""
    global _mark  # noqa: PLW0603
    _mark = _WHEREVER_KNOWN
    try:
        yield
    finally:
        _mark = _WHERE_FASTER


def are_wherever_known() -> bool:
    return _mark is _WHEREVER_KNOWN


def convolution_gradient(
    plain: Callable[..., tuple[tf.Tensor, tf.Tensor]],
) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
    """Replaces TensorFlow's gradients of a `Conv2D` if XLA would be slow."""

    def gradient(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        slow = (
            is_tracing()
            and not _served(op)
            and (wants_host_kernels() or graphs.in_loop(tf.compat.v1.get_default_graph()))
        )
        geometry = _geometry(op, upstream) if slow else None
        if geometry is None:
            return plain(op, upstream)
        inputs, weights = op.inputs
        return _of_inputs(inputs, weights, upstream, geometry), _of_weights(inputs, weights, upstream, geometry)

    return gradient


def _served(op: tf.Operation) -> bool:
    """Returns True if TensorFlow's own gradients are fast, by kernels of the host or as products."""
    type_ = op.inputs[0].dtype
    own = type_ == tf.float16 and _attributes.is_set_by_scope(tf.compat.v1.get_default_graph())
    if own or not wants_host_kernels(type_):
        return False
    rows, columns = op.inputs[1].shape[:2]
    if rows == columns == 1 and op.get_attr("padding") != b"EXPLICIT":
        return True
    if _is_small(op) and not are_wherever_known():
        return False
    computed = native.ipu_computed_type(type_.as_datatype_enum)
    return set(op.get_attr("dilations")) == {1} and (type_ == tf.float64 or native.ipu_one_dnn_computes(computed))


def _is_small(op: tf.Operation) -> bool:
    images, weights = (tensor.shape for tensor in op.inputs)
    if not images.is_fully_defined() or not weights.is_fully_defined():
        return False
    _, *strides, _ = op.get_attr("strides")
    type_ = op.inputs[0].dtype.as_datatype_enum
    sizes = (ctypes.c_int64 * 4)(*images)
    return bool(native.ipu_small_convolution(sizes, weights.num_elements(), math.prod(strides), type_))


class _Axis:
    def __init__(self, op: tf.Operation, upstream: tf.Tensor, at: int) -> None:
        self.at = at
        self.size = known_size(op.inputs[0], at)
        self.kernel = known_size(op.inputs[1], at - 1)
        self.out = known_size(upstream, at)
        self.stride = op.get_attr("strides")[at]
        self.dilation = op.get_attr("dilations")[at]
        spread = (self.out - 1) * self.stride + 1  # The outputs, with gaps.
        reach = (self.kernel - 1) * self.dilation  # What the filter spans, less one.
        padding = op.get_attr("padding")
        if padding == b"EXPLICIT":
            before = op.get_attr("explicit_paddings")[2 * at]
        else:
            before = max(spread + reach - self.size, 0) // 2 if padding == b"SAME" else 0
        self.pad = (before, reach + spread - self.size - before)
        self.gradient_pad = (reach - before, self.size - spread + before)


def _geometry(op: tf.Operation, upstream: tf.Tensor) -> list[_Axis] | None:
    """Returns the axes of space; None if the gradient stays TensorFlow's own."""
    inputs, weights = op.inputs
    shapes = (inputs.shape, weights.shape, upstream.shape)
    if not all(shape.is_fully_defined() for shape in shapes) or op.get_attr("data_format") != b"NHWC":
        return None
    if inputs.shape[3] != weights.shape[2] or 0 in [size for shape in shapes for size in shape]:
        return None
    axes = [_Axis(op, upstream, at) for at in (1, 2)]
    return axes if all(min(axis.gradient_pad) >= 0 and axis.pad[0] >= 0 for axis in axes) else None


def _of_weights(inputs: tf.Tensor, weights: tf.Tensor, upstream: tf.Tensor, axes: list[_Axis]) -> tf.Tensor:
    """A convolution of the inputs by the upstream gradients, with features for the batch and the batch for features."""

    @tf.custom_gradient
    def convolve(inputs: tf.Tensor, upstream: tf.Tensor) -> Any:
        # The input after the last position of the filter has no gradient.
        rows, columns = (axis.size + min(axis.pad[1], 0) for axis in axes)
        result = xla.convolution(
            tf.transpose(inputs[:, :rows, :columns], [3, 1, 2, 0]),
            tf.transpose(upstream, [1, 2, 0, 3]),
            padding=[(axis.pad[0], max(axis.pad[1], 0)) for axis in axes],
            strides=[axis.dilation for axis in axes],
            kernel_gaps=[axis.stride for axis in axes],
        )

        def backward(second: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return _of_inputs(inputs, second, upstream, axes), _forward(inputs, second, axes)

        return tf.ensure_shape(tf.transpose(result, [1, 2, 0, 3]), weights.shape), backward

    return convolve(inputs, upstream)


def _of_inputs(inputs: tf.Tensor, weights: tf.Tensor, upstream: tf.Tensor, axes: list[_Axis]) -> tf.Tensor:
    """A convolution of the upstream gradients, with gaps as the stride skips, by the filter turned around."""

    @tf.custom_gradient
    def convolve(weights: tf.Tensor, upstream: tf.Tensor) -> Any:
        result = xla.convolution(
            upstream,
            tf.transpose(tf.reverse(weights, [0, 1]), [0, 1, 3, 2]),
            padding=[axis.gradient_pad for axis in axes],
            input_gaps=[axis.stride for axis in axes],
            kernel_gaps=[axis.dilation for axis in axes],
        )

        def backward(second: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return _of_weights(second, weights, upstream, axes), _forward(second, weights, axes)

        return tf.ensure_shape(result, inputs.shape), backward

    return convolve(weights, upstream)


def _forward(inputs: tf.Tensor, weights: tf.Tensor, axes: list[_Axis]) -> tf.Tensor:
    return tf.nn.conv2d(
        inputs,
        weights,
        strides=[axis.stride for axis in axes],
        padding=[[0, 0], *([axis.pad[0], max(axis.pad[1], 0)] for axis in axes), [0, 0]],  # pyright: ignore[reportArgumentType]  # Its stub knows no explicit one.
        dilations=[axis.dilation for axis in axes],
    )
