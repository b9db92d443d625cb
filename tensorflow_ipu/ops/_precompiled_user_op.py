"""Operations with code for tiles, as the functions that users have registered in their place."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu.ops._cpu_user_operation import checked, cpu_user_operation, results
from tensorflow_ipu.ops._user_op_emulations import emulation_of

if TYPE_CHECKING:
    from tensorflow_ipu._types import DTypeLike, Gradient, ShapeLike, TensorLike

__all__ = ["precompiled_user_op"]


def precompiled_user_op(
    inputs: Sequence[TensorLike],
    library_path: str | os.PathLike[str],
    gp_path: str | os.PathLike[str] = "",
    outs: Mapping[str, Sequence[DTypeLike | ShapeLike]] | None = None,
    name: str = "UserOp",
    op_name: str = "Build",
    separate_gradients: bool = False,
    inputs_with_gradients: Sequence[int] | None = None,
    attributes: str | None = None,
    gradient_attributes: str | None = None,
) -> list[tf.Tensor]:
    """An operation with code for the tiles of an IPU, for which what `ops.register_user_op_emulation` was given stands in.

    Args:
      inputs: Tensors.
      library_path: The path of the operation's library. It is not opened and need not exist; its name chooses among
        emulations that were registered for the library of that name.
      gp_path: The path of its code for tiles, which is not opened either.
      outs: `{"output_types": [...], "output_shapes": [...]}`: types and static shapes of the outputs; none if omitted.
        What the emulation returns is held against it. In a graph that is no program, as where Keras traces a layer for a
        batch of any size, sizes may be unknown.
      name: A name for the operation.
      op_name: The name of the function in the library.
      separate_gradients: Whether the gradients are computed by an operation for each input. An emulation in C++ is
        called so; the numbers are the same.
      inputs_with_gradients: The numbers of those inputs that have a gradient; all if omitted.
      attributes: A string that the emulation gets.
      gradient_attributes: A string that its gradient function gets.

    Returns:
      The outputs.

    Raises:
      NotImplementedError: There is no emulation of the operation.
      RuntimeError: The emulation is in C++, and the call is not in a program that is being traced.
      ValueError: `attributes` or `gradient_attributes` is no string; `outs` does not say types and static shapes, or the
        emulation returns others; `inputs_with_gradients` has the number of no input.
    """
    del gp_path
    values, wanted = checked(inputs, inputs_with_gradients, attributes, gradient_attributes)
    types, shapes = results(outs)
    emulation = emulation_of(op_name, library_path)
    if isinstance(emulation.function, str):
        return cpu_user_operation(
            values,
            emulation.function,
            outs,
            name,
            op_name,
            separate_gradients,
            wanted,
            attributes,
            gradient_attributes,
        )

    def outputs_of(*arguments: tf.Tensor) -> list[tf.Tensor]:
        found = [tf.convert_to_tensor(one) for one in emulation.outputs(arguments, attributes or "")]
        given = [(one.dtype, one.shape) for one in found]
        if len(found) != len(types) or not all(
            dtype == type_ and shape.is_compatible_with(expected)
            for (dtype, shape), type_, expected in zip(given, types, shapes, strict=True)
        ):
            raise ValueError(
                f"`outs` says that `{op_name}` has the outputs {_described(types, shapes)}, and its emulation returns"
                f" {_described([dtype for dtype, _ in given], [shape for _, shape in given])}"
            )
        return [tf.ensure_shape(one, shape) for one, shape in zip(found, shapes, strict=True)]

    with tf.name_scope(name):
        if emulation.gradient is None:
            passed = [one if index in wanted else tf.stop_gradient(one) for index, one in enumerate(values)]
            return outputs_of(*passed)

        @tf.custom_gradient
        def operation(*arguments: tf.Tensor) -> Any:
            outputs = outputs_of(*arguments)

            def gradient(*gradients: tf.Tensor) -> list[Gradient | None]:
                found = emulation.gradients(gradients, outputs, arguments, gradient_attributes or "")
                return [one if index in wanted else None for index, one in enumerate(found)]

            return outputs, gradient

        return list(operation(*values))


def _described(types: Sequence[tf.DType], shapes: Sequence[tf.TensorShape]) -> str:
    each = (f"{dtype.name}{shape.as_list()}" for dtype, shape in zip(types, shapes, strict=True))
    return ", ".join(each) or "none"
