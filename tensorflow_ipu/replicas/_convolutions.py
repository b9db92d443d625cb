"""Gradients of convolutions in loops, in the one form in which XLA:CPU runs convolutions fast everywhere.

XLA:CPU has fast code for convolutions of one order of dimensions: batch, rows, columns, features. It brings those of any
order into that one, but looks for them outside of loops alone
(https://github.com/openxla/xla/blob/main/xla/service/cpu/conv_canonicalization.cc). TensorFlow's gradients have other
orders, and a training loop that stays on the device would run them by its slowest code. Kernels of the host compute most
gradients of programs; this is for those that they do not know, with dilations, those of types for which they are slow, and
for programs without such kernels. It can go when XLA looks into loops.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla
from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.python.framework import ops as framework_ops

from tensorflow_ipu._library import native
from tensorflow_ipu.replicas._loops import in_loop
from tensorflow_ipu.replicas._tracing import is_tracing, wants_host_kernels

_TYPE = "Conv2D"
_numbers: Any = xla_data_pb2
# Batch, rows, columns, features; the filter's rows, columns, features of the input, features of the output.
_ORDER = _numbers.ConvolutionDimensionNumbers(
    input_batch_dimension=0,
    input_feature_dimension=3,
    input_spatial_dimensions=[1, 2],
    kernel_input_feature_dimension=2,
    kernel_output_feature_dimension=3,
    kernel_spatial_dimensions=[0, 1],
    output_batch_dimension=0,
    output_feature_dimension=3,
    output_spatial_dimensions=[1, 2],
)
_registry: Any = framework_ops.gradient_registry
_plain = _registry.lookup(_TYPE)


def gradient(op: Any, upstream: Any) -> Any:
    """The gradients of a `Conv2D` with respect to its input and filter: TensorFlow's own, but where XLA would be slow."""
    slow = is_tracing() and not _served(op) and in_loop(framework_ops.get_default_graph())
    geometry = _geometry(op, upstream) if slow else None
    if geometry is None:
        return _plain(op, upstream)
    inputs, weights = op.inputs
    return _of_inputs(inputs, weights, upstream, geometry), _of_weights(inputs, weights, upstream, geometry)


def _served(op: Any) -> bool:
    """Whether TensorFlow's own gradients are fast, by kernels of the host or as products."""
    if not wants_host_kernels():
        return False
    rows, columns = op.inputs[1].shape[:2]
    if rows == columns == 1 and set(op.get_attr("strides")) == {1}:
        return True
    type_ = op.inputs[0].dtype
    return set(op.get_attr("dilations")) == {1} and (
        type_ == tf.float64 or native.ipu_one_dnn_computes(type_.as_datatype_enum)
    )


class _Axis:
    """One of the two axes of space.

    Attributes:
      at: Which axis it is of the input and output; it is the one before that of the filter.
    """

    def __init__(self, op: Any, upstream: Any, at: int) -> None:
        self.at = at
        self.size = op.inputs[0].shape[at]
        self.kernel = op.inputs[1].shape[at - 1]
        self.out = upstream.shape[at]
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


def _geometry(op: Any, upstream: Any) -> list[_Axis] | None:
    """The axes of space; None where the gradient stays TensorFlow's own."""
    inputs, weights = op.inputs
    shapes = (inputs.shape, weights.shape, upstream.shape)
    if not all(shape.is_fully_defined() for shape in shapes) or op.get_attr("data_format") != b"NHWC":
        return None
    if inputs.shape[3] != weights.shape[2] or 0 in [size for shape in shapes for size in shape]:
        return None
    axes = [_Axis(op, upstream, at) for at in (1, 2)]
    return axes if all(min(axis.gradient_pad) >= 0 and axis.pad[0] >= 0 for axis in axes) else None


def _of_weights(inputs: Any, weights: Any, upstream: Any, axes: list[_Axis]) -> Any:
    """A convolution of the inputs by the upstream gradients, with features for the batch and the batch for features."""
    # What is left of the input behind the last place of the filter has no gradient.
    rows, columns = (axis.size + min(axis.pad[1], 0) for axis in axes)
    swapped = tf.transpose(inputs[:, :rows, :columns], [3, 1, 2, 0])
    by = tf.transpose(upstream, [1, 2, 0, 3])
    result = tf.nn.conv2d(
        swapped,
        by,
        strides=[axis.dilation for axis in axes],
        padding=_padding([(axis.pad[0], max(axis.pad[1], 0)) for axis in axes]),
        dilations=[axis.stride for axis in axes],
    )
    return tf.ensure_shape(tf.transpose(result, [1, 2, 0, 3]), weights.shape)


def _of_inputs(inputs: Any, weights: Any, upstream: Any, axes: list[_Axis]) -> Any:
    """A convolution of the upstream gradients, with gaps as the stride skips, by the filter turned around."""

    @tf.custom_gradient
    def convolve(weights: Any, upstream: Any) -> Any:
        result = xla.conv(
            upstream,
            tf.transpose(tf.reverse(weights, [0, 1]), [0, 1, 3, 2]),
            window_strides=[1, 1],
            padding=[list(axis.gradient_pad) for axis in axes],
            lhs_dilation=[axis.stride for axis in axes],
            rhs_dilation=[axis.dilation for axis in axes],
            dimension_numbers=_ORDER,
        )

        def backward(second: Any) -> tuple[Any, Any]:
            forward = tf.nn.conv2d(
                second,
                weights,
                strides=[axis.stride for axis in axes],
                padding=_padding([(axis.pad[0], max(axis.pad[1], 0)) for axis in axes]),
                dilations=[axis.dilation for axis in axes],
            )
            return _of_weights(second, weights, upstream, axes), forward

        return tf.ensure_shape(result, inputs.shape), backward

    return convolve(weights, upstream)


def _padding(pads: list[tuple[int, int]]) -> Any:
    return [[0, 0], *(list(pad) for pad in pads), [0, 0]]


# TensorFlow registers a gradient once and for all, so the entry is replaced.
_registry._registry[_TYPE]["type"] = gradient
