"""Operations of XLA that have no public form in TensorFlow, and the protocol messages of HLO.

Uses the private `tensorflow.compiler.tf2xla`, whose operations are registered but missing in `tf.raw_ops`. Without it:
`tf.load_op_library` returns the operations of a library by name, and `Graph.create_op` builds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.compiler.tf2xla.python import xla
from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.compiler.xla.service import hlo_pb2

_messages: Any = xla_data_pb2  # `protoc` generates this module at run time, so type checkers see no attributes.

# Images are NHWC, kernels HWIO.
_ORDER = _messages.ConvolutionDimensionNumbers(
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


def convolution(
    inputs: tf.Tensor,
    kernel: tf.Tensor,
    padding: Sequence[Sequence[int]],
    *,
    strides: Sequence[int] = (1, 1),
    input_gaps: Sequence[int] = (1, 1),
    kernel_gaps: Sequence[int] = (1, 1),
) -> tf.Tensor:
    """Returns a 2-D convolution whose input and kernel may be dilated; `tf.nn.conv2d` dilates the kernel only."""
    return xla.conv(
        inputs,
        kernel,
        window_strides=list(strides),
        padding=[list(pads) for pads in padding],
        lhs_dilation=list(input_gaps),
        rhs_dilation=list(kernel_gaps),
        dimension_numbers=_ORDER,
    )


def read_at(tensor: tf.Tensor, start: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns the slice at a `start` that is known at run time.

    `tf.slice` copies more, since XLA folds the start into the operations that read the slice.
    """
    return xla.dynamic_slice(tensor, start, size)


def written_at(tensor: tf.Tensor, value: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
    """Returns `tensor` with `value` written at `start`, in place if XLA can.

    XLA compiles `tf.tensor_scatter_nd_update` as a scatter instead.
    """
    return xla.dynamic_update_slice(tensor, value, start)


def optimization_barrier(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the same tensors after a barrier that XLA moves no computation across."""
    results: Any = gen_xla_ops.xla_optimization_barrier(list(tensors))
    return list(results)


def frontend_attributes(serialized: bytes) -> dict[str, str]:
    """Returns the attributes in a serialized `FrontendAttributes` of HLO instructions."""
    return dict(_messages.FrontendAttributes.FromString(serialized).map)


def serialized_frontend_attributes(attributes: Mapping[str, str]) -> bytes:
    """Returns attributes of HLO instructions as a serialized `FrontendAttributes`."""
    return _messages.FrontendAttributes(map=dict(attributes)).SerializeToString(deterministic=True)


_modules: Any = hlo_pb2
_types: Any = xla_data_pb2

HloModuleProto = _modules.HloModuleProto
PrimitiveType = _types.PrimitiveType
