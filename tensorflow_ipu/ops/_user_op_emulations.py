"""What stands in for operations whose code is for tiles: functions that users register, by the operation's name."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu.ops._cpu_user_operation import checked, cpu_user_operation, results

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import DTypeLike, Gradient, ShapeLike, TensorLike

__all__ = [
    "Emulation",
    "emulation_of",
    "precompiled_user_op",
    "register_user_op_emulation",
]


@dataclass(frozen=True)
class Emulation:
    """What was registered for an operation."""

    function: Callable[..., Any] | str
    gradient: Callable[..., Any] | None

    def outputs(self, inputs: Sequence[tf.Tensor], attributes: str) -> list[tf.Tensor]:
        """Calls the Python function."""
        assert callable(self.function)
        return _as_list(_called(self.function, inputs, attributes))

    def gradients(
        self,
        gradients: Sequence[tf.Tensor],
        outputs: Sequence[tf.Tensor],
        inputs: Sequence[tf.Tensor],
        attributes: str,
    ) -> list[Gradient | None]:
        """Calls the Python function of gradients: one for each input."""
        assert self.gradient is not None
        found = _as_list(_called(self.gradient, [list(gradients), list(outputs), list(inputs)], attributes))
        if len(found) != len(inputs):
            raise ValueError(
                f"`gradient` of `register_user_op_emulation`, `{self.gradient!r}`, returns {len(found)} gradients for"
                f" {len(inputs)} inputs: let it return one for each, or None for one that has none"
            )
        return found


# By the operation's name, and that of its library's file, or None for a library of any name.
_registered: dict[tuple[str, str | None], Emulation] = {}


def register_user_op_emulation(
    op_name: str,
    function: Callable[..., Any] | str | os.PathLike[str],
    gradient: Callable[..., Any] | None = None,
    *,
    library: str | os.PathLike[str] | None = None,
) -> None:
    """Says what stands in for an operation of `custom_ops.precompiled_user_op`, whose own code only tiles can run.

    Programs that call the operation are not changed. Register before they are traced; the last call for a name holds.

    Args:
      op_name: The operation's name, as `precompiled_user_op` is called with it: `"Build"` where it is not.
      function: A function of the inputs, tensors, that returns the outputs: one tensor or a list, made by TensorFlow's
        operations. One with a parameter `attributes` gets the operation's, a string, by name. Or the path of a shared
        library, whose function `op_name` has the form that `custom_ops.cpu_user_operation` calls, as has its function
        `<op_name>_grad`, for gradients.
      gradient: A function of three lists of tensors, the gradients of the outputs, the outputs, and the inputs, that
        returns a list with a gradient for each input, or None for one that has none. It gets the operation's
        `gradient_attributes` likewise. If omitted, TensorFlow differentiates `function`.
      library: The name of the operation's library, with or without its folder, where several have an operation
        `op_name`. If omitted, it stands in for those of all libraries that have none of their own.

    Raises:
      TypeError: An argument is of another type.
      ValueError: `op_name` is empty, the library in C++ does not exist, or comes with a `gradient` in Python.
    """
    if not isinstance(op_name, str):
        raise TypeError(f"`op_name` must be a string, but is {op_name!r}")
    if not op_name:
        raise ValueError('`op_name` is empty; name the operation, which is `"Build"` where a program does not')
    if gradient is not None and not callable(gradient):
        raise TypeError(f"`gradient` must be a function or None, but is {gradient!r}")
    if isinstance(function, (str, os.PathLike)):
        path = os.fspath(function)
        if not Path(path).is_file():
            raise ValueError(f"`function` is `{path}`, which is no file: give a function, or the path of a library")
        if gradient is not None:
            raise ValueError(
                f"`gradient` must be omitted where `function` is a library: its function `{op_name}_grad` is called"
            )
        function = path
    elif not callable(function):
        raise TypeError(f"`function` must be a function or the path of a shared library, but is {function!r}")
    _registered[op_name, None if library is None else Path(library).name] = Emulation(function, gradient)


def emulation_of(op_name: str, library_path: str | os.PathLike[str]) -> Emulation:
    """What was registered for an operation."""
    library = Path(library_path).name
    found = _registered.get((op_name, library)) or _registered.get((op_name, None))
    if found is not None:
        return found
    others = ", ".join(f"`{name}`" + (f" of `{of}`" if of else "") for name, of in _registered)
    raise NotImplementedError(
        f"`precompiled_user_op` calls `{op_name}` of `{library}`, whose code is for the tiles of an IPU, and there is no"
        f' emulation of it: say what it computes by `ops.register_user_op_emulation("{op_name}", function)` before the'
        " program is traced, in Python over TensorFlow's operations or as a library in C++; for a script that is to stay"
        " as it is, in a file of its own: `python -m tensorflow_ipu --emulations=FILE SCRIPT`."
        + (f" Registered are {others}" if others else "")
    )


def _called(function: Callable[..., Any], arguments: Sequence[Any], attributes: str) -> Any:
    parameters = inspect.signature(function).parameters
    named = {"attributes": attributes} if "attributes" in parameters else {}
    return function(*arguments, **named)


def _as_list(found: Any) -> list[Any]:
    if found is None:
        return []
    return list(found) if isinstance(found, (list, tuple)) else [found]


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
