"""Operations of XLA's that TensorFlow has no public form of, and what is said of instructions.

Stands on `tensorflow.compiler.tf2xla`, whose operations are registered, but not among `tf.raw_ops`. When it is gone:
`tf.load_op_library` gives the operations of a library by name, and `functions` can build them by `Graph.create_op`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.compiler.tf2xla.python import xla
from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.compiler.xla.service import hlo_pb2

_messages: Any = xla_data_pb2  # Made from a protocol file, so that type checkers see nothing of it.

# Batch, rows, columns, features; the filter's rows, columns, features of the input, features of the output.
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
    """A convolution of two dimensions with gaps in both operands; `tf.nn.conv2d` has none in its input."""
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
    """A slice at a place that the run knows. `tf.slice` copies more: it has XLA fold the place into what it reads."""
    return xla.dynamic_slice(tensor, start, size)


def written_at(tensor: tf.Tensor, value: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
    """The tensor with a part of it replaced, in place where XLA can; `tf.tensor_scatter_nd_update` becomes a scatter."""
    return xla.dynamic_update_slice(tensor, value, start)


def barred(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the same tensors, past which XLA moves no computation; TensorFlow has no such operation in public."""
    found: Any = gen_xla_ops.xla_optimization_barrier(list(tensors))
    return list(found)


def frontend_attributes(serialized: bytes) -> dict[str, str]:
    """Returns the attributes of instructions in a serialized `FrontendAttributes`."""
    return dict(_messages.FrontendAttributes.FromString(serialized).map)


def serialized_frontend_attributes(attributes: Mapping[str, str]) -> bytes:
    """Attributes of instructions as a serialized `FrontendAttributes`."""
    return _messages.FrontendAttributes(map=dict(attributes)).SerializeToString(deterministic=True)


_modules: Any = hlo_pb2
_types: Any = xla_data_pb2

HloModuleProto = _modules.HloModuleProto
PrimitiveType = _types.PrimitiveType
