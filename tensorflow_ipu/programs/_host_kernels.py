"""Marks the operations of programs that host kernels compute: layers, if the target permits it, and assertions."""

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

# The lowering to XLA recognizes marked nodes by this attribute. TensorFlow ignores it.
ATTRIBUTE = "_ipu_host_kernel"
_IN_LOOP = "_ipu_in_loop"

_AttrValue: Any = tf.compat.v1.AttrValue
_WHERE_FASTER = _AttrValue(s=b"where faster")
_WHEREVER_KNOWN = _AttrValue(s=b"wherever known")
# Assertions, which can end a run. XLA drops them.
_CHECKS = frozenset({"Assert", "CheckNumerics", "CheckNumericsV2"})
_LAYERS = frozenset(native.ipu_host_layers().decode().split()) - _CHECKS

# Holds the message texts of an `Assert`, because a program cannot hold strings.
_TEXTS = "_ipu_texts"

# An attribute of operations that XLA cannot lower. It names the input that must be a constant when XLA compiles.
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


def marking(original: Callable[..., None]) -> Callable[..., None]:
    """Marks the new operations of a program for host kernels."""

    def create(self: tf.Graph, op: tf.Operation, compute_device: bool = True) -> None:
        original(self, op, compute_device)
        _mark_if_computed_on_host(self, op)

    return create


def _mark_if_computed_on_host(graph: tf.Graph, op: tf.Operation) -> None:
    if op.type in _LAYERS:
        type_ = op.outputs[0].dtype if op.outputs else None
        # TensorFlow's kernel would ignore the arithmetic that a scope chooses.
        is_set_by_scope = type_ == tf.float16 and _attributes.is_set_by_scope(graph, op)
        if _trace_context.wants_host_kernels(type_, len(op.outputs)) and not is_set_by_scope:
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
    """Returns the text of a string tensor: `...` if its value is unknown, and nothing for other types."""
    if tensor.dtype.name != "string":
        return b""
    value = tf.get_static_value(_trace_context.source_of(tensor))
    return b"..." if value is None else b" ".join(np.ravel(value).tolist())


@contextlib.contextmanager
def wherever_known() -> Iterator[None]:
    """Runs the block with every existing host kernel in use, faster or not; for measurements and tests."""
    global _mark  # noqa: PLW0603
    _mark = _WHEREVER_KNOWN
    try:
        yield
    finally:
        _mark = _WHERE_FASTER


def are_wherever_known() -> bool:
    return _mark is _WHEREVER_KNOWN


def convolution_gradient(
    original: Callable[..., tuple[tf.Tensor, tf.Tensor]],
) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
    """Replaces TensorFlow's gradients of a `Conv2D` if XLA would compute them slowly.

    TensorFlow lowers `Conv2DBackpropInput` and `Conv2DBackpropFilter` to convolutions that XLA may compute slowly. Here
    both are forward convolutions with other paddings, strides and gaps:

    - For the inputs, the upstream gradients are convolved with the filter, reversed along both axes. The stride
      becomes gaps of stride - 1 zeros between the upstream gradients.
    - For the weights, the inputs are convolved with the upstream gradients. The batch takes the place of the features,
      and the stride and the dilation of the forward convolution swap roles.

    `_Axis` computes the paddings. Example: 5 inputs, a filter of 3, stride 2 and `VALID` padding give 2 outputs. Their 2
    gradients with one zero between them and 2 zeros on either side are 7 values. Convolved with the filter, they give
    the 5 gradients of the inputs.
    """

    def gradient(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        is_slow = (
            is_tracing()
            and not _has_fast_gradients(op)
            and (wants_host_kernels() or graphs.in_loop(tf.compat.v1.get_default_graph()))
        )
        geometry = _geometry(op, upstream) if is_slow else None
        if geometry is None:
            return original(op, upstream)
        inputs, weights = op.inputs
        return (
            _gradient_of_inputs(inputs, weights, upstream, geometry),
            _gradient_of_weights(inputs, weights, upstream, geometry),
        )

    return gradient


def _has_fast_gradients(op: tf.Operation) -> bool:
    """Returns True if TensorFlow's own gradients are fast, as host kernels or as matrix products."""
    type_ = op.inputs[0].dtype
    is_set_by_scope = type_ == tf.float16 and _attributes.is_set_by_scope(tf.compat.v1.get_default_graph())
    if is_set_by_scope or not wants_host_kernels(type_):
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
    """One spatial axis of a convolution: its sizes, and the paddings of the convolution and of its gradient."""

    def __init__(self, op: tf.Operation, upstream: tf.Tensor, axis: int) -> None:
        self.size = known_size(op.inputs[0], axis)
        self.kernel = known_size(op.inputs[1], axis - 1)
        self.out = known_size(upstream, axis)
        self.stride = op.get_attr("strides")[axis]
        self.dilation = op.get_attr("dilations")[axis]
        spread = (self.out - 1) * self.stride + 1  # The span of the outputs with their gaps.
        reach = (self.kernel - 1) * self.dilation  # The span of the dilated filter minus one.
        padding = op.get_attr("padding")
        if padding == b"EXPLICIT":
            start = op.get_attr("explicit_paddings")[2 * axis]
        else:
            start = max(spread + reach - self.size, 0) // 2 if padding == b"SAME" else 0
        self.pad = (start, reach + spread - self.size - start)
        self.gradient_pad = (reach - start, self.size - spread + start)


def _geometry(op: tf.Operation, upstream: tf.Tensor) -> list[_Axis] | None:
    """Returns the spatial axes, or None if TensorFlow's own gradient has to be used."""
    inputs, weights = op.inputs
    shapes = (inputs.shape, weights.shape, upstream.shape)
    if not all(shape.is_fully_defined() for shape in shapes) or op.get_attr("data_format") != b"NHWC":
        return None
    if inputs.shape[3] != weights.shape[2] or 0 in [size for shape in shapes for size in shape]:
        return None
    axes = [_Axis(op, upstream, axis) for axis in (1, 2)]
    return axes if all(min(axis.gradient_pad) >= 0 and axis.pad[0] >= 0 for axis in axes) else None


def _gradient_of_weights(inputs: tf.Tensor, weights: tf.Tensor, upstream: tf.Tensor, axes: list[_Axis]) -> tf.Tensor:
    """Convolves the inputs with the upstream gradients; batch and features swap places."""

    @tf.custom_gradient
    def convolve(inputs: tf.Tensor, upstream: tf.Tensor) -> Any:
        # Inputs beyond the last position of the filter do not contribute.
        rows, columns = (axis.size + min(axis.pad[1], 0) for axis in axes)
        result = xla.convolution(
            tf.transpose(inputs[:, :rows, :columns], [3, 1, 2, 0]),
            tf.transpose(upstream, [1, 2, 0, 3]),
            padding=[(axis.pad[0], max(axis.pad[1], 0)) for axis in axes],
            strides=[axis.dilation for axis in axes],
            kernel_gaps=[axis.stride for axis in axes],
        )

        def backward(second: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return _gradient_of_inputs(inputs, second, upstream, axes), _forward(inputs, second, axes)

        return tf.ensure_shape(tf.transpose(result, [1, 2, 0, 3]), weights.shape), backward

    return convolve(inputs, upstream)


def _gradient_of_inputs(inputs: tf.Tensor, weights: tf.Tensor, upstream: tf.Tensor, axes: list[_Axis]) -> tf.Tensor:
    """Inserts gaps for the stride into the upstream gradients, and convolves them with the reversed filter."""

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
            return _gradient_of_weights(second, weights, upstream, axes), _forward(second, weights, axes)

        return tf.ensure_shape(result, inputs.shape), backward

    return convolve(weights, upstream)


def _forward(inputs: tf.Tensor, weights: tf.Tensor, axes: list[_Axis]) -> tf.Tensor:
    return tf.nn.conv2d(
        inputs,
        weights,
        strides=[axis.stride for axis in axes],
        padding=[[0, 0], *([axis.pad[0], max(axis.pad[1], 0)] for axis in axes), [0, 0]],  # pyright: ignore[reportArgumentType]  # The stub lacks explicit paddings.
        dilations=[axis.dilation for axis in axes],
    )
