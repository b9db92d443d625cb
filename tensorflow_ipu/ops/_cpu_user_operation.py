"""Operations that users write in C++, for programs to call on the host."""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import replicas
from tensorflow_ipu._native.library import native, of_user, ops
from tensorflow_ipu._tensorflow import graphs
from tensorflow_ipu.feeds import _feed, program_order
from tensorflow_ipu.ops import sites

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import DTypeLike, Gradient, ShapeLike, TensorLike


__all__ = ["checked", "compile_user_operation", "cpu_user_operation", "results"]

# What the gradient has to know of an operation; TensorFlow ignores it.
_CALL = "_ipu_user_call"

# The path of a library and the name of one of its functions: what names it to programs. Libraries stay loaded.
_functions: dict[tuple[str, str], _feed.Feed] = {}


def cpu_user_operation(
    inputs: Sequence[TensorLike],
    library_path: str | os.PathLike[str],
    outs: Mapping[str, Sequence[DTypeLike | ShapeLike]] | None = None,
    name: str = "UserOp",
    op_name: str = "Callback",
    separate_gradients: bool = False,
    inputs_with_gradients: Sequence[int] | None = None,
    attributes: str | None = None,
    gradient_attributes: str | None = None,
) -> list[tf.Tensor]:
    """Calls a C++ function of a shared library in the midst of a program, in the order of its uses of queues.

    The library has a function of this form, which reads the inputs at `data` and writes the outputs, all in row-major
    order:

        extern "C" void Callback(
            const std::vector<const void*>& data, const std::vector<uint32_t>& number_of_elements,
            const std::vector<void*>& outputs, const std::string& attributes, const std::string& name);

    It runs on one of the threads that compute the program, on the program's own memory: it must keep no pointer, and not
    wait for another replica, which may call it at the same time. What it throws ends the run with its message.

    The gradient is computed by another function of that form, `Callback_grad`. Its `data` are the gradients of all
    outputs, the outputs, and the inputs, one after the other; its outputs are the gradients of the inputs.

    Args:
      inputs: Tensors of static shape.
      library_path: The path of the shared library, which is loaded now; see `compile_user_operation`.
      outs: `{"output_types": [...], "output_shapes": [...]}`: types and static shapes of the outputs; none if omitted.
        In a graph that is no program, as where Keras traces a layer for a batch of any size, sizes may be unknown.
      name: A name for the operation, which the function gets.
      op_name: The name of the function.
      separate_gradients: Whether the gradient function is called once for each input, with that one's gradient as its only
        output, and `_grad_` with the number of the input behind `name`. Else it is called once, for all.
      inputs_with_gradients: The numbers of those inputs that have a gradient; all if omitted.
      attributes: A string that the function gets.
      gradient_attributes: A string that the gradient function gets.

    Returns:
      The outputs.

    Raises:
      RuntimeError: The call is not in a program that is being traced.
      ValueError: `attributes` or `gradient_attributes` is no string; `outs` does not say types and static shapes;
        `inputs_with_gradients` has the number of no input; the library cannot be loaded, or lacks the function.
    """
    values, wanted = checked(inputs, inputs_with_gradients, attributes, gradient_attributes)
    path = _load(library_path, op_name)
    known = {
        "path": path,
        "function": op_name,
        "separate": bool(separate_gradients),
        "inputs": wanted,
        "attributes": gradient_attributes or "",
    }
    return _call((path, op_name), values, *results(outs), name, attributes or "", known)


def compile_user_operation(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], flags: Sequence[str] = ()
) -> str:
    """Compiles C++ files to a library for `cpu_user_operation`, by g++ or what the variable `CXX` names.

    Args:
      sources: The path of a file, or several.
      flags: Further flags for the compiler.

    Returns:
      The path of the library, which lives as long as the process.

    Raises:
      ValueError: There is no compiler, or it does not compile the files: the message has its words.
    """
    files = [os.fspath(file) for file in ([sources] if isinstance(sources, (str, os.PathLike)) else sources)]
    if not files:
        raise ValueError("`sources` must be the path of a C++ file, or several, but is empty")
    for file in files:
        if "\n" in file:
            raise ValueError(
                f"`sources` must be paths of C++ files, but `{file.strip().splitlines()[0]}`... is code: write it to a file"
            )
        if not Path(file).is_file():
            raise ValueError(f"`sources` must be paths of C++ files, but `{file}` is none")
    folder = tempfile.mkdtemp(prefix="ipu_user_operation_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = Path(folder, f"lib{Path(files[0]).stem}.so")
    # TensorFlow's wheels, and so this package, have the strings and lists of the newer ABI.
    compiler = [
        *shlex.split(os.environ.get("CXX") or "g++"),
        "-std=c++17",
        "-O2",
        "-fPIC",
        "-shared",
        "-D_GLIBCXX_USE_CXX11_ABI=1",
    ]
    try:
        command = [*compiler, *flags, *files, "-o", str(library)]
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as exc:
        raise ValueError(
            f"there is no compiler `{compiler[0]}`: install g++ (`apt-get install g++`), let the variable `CXX` name yours,"
            " or compile the library elsewhere"
        ) from exc
    except subprocess.CalledProcessError as exc:
        raise ValueError(f"`{compiler[0]}` does not compile `sources`:\n{exc.stderr}") from exc
    return str(library)


def checked(
    inputs: Sequence[TensorLike],
    inputs_with_gradients: Sequence[int] | None,
    attributes: str | None,
    gradient_attributes: str | None,
) -> tuple[list[tf.Tensor], list[int]]:
    """What operations of the user's are given: the inputs, and the numbers of those that have a gradient."""
    for argument, value in (("attributes", attributes), ("gradient_attributes", gradient_attributes)):
        if value is not None and not isinstance(value, str):
            raise ValueError(f"Expected {argument} to be a 'str' type, but was {type(value).__name__}: `{value!r}`")
    values = [tf.convert_to_tensor(value) for value in inputs]
    wanted = list(range(len(values)) if inputs_with_gradients is None else inputs_with_gradients)
    if any(not isinstance(index, int) or not 0 <= index < len(values) for index in wanted):
        raise ValueError(
            f"`inputs_with_gradients` must have numbers of `inputs`, 0 to {len(values) - 1}, but is {wanted!r}"
        )
    return values, wanted


def _load(library_path: str | os.PathLike[str], function: str) -> str:
    """Loads the function of a library, and returns the path that the library is known by."""
    path = os.path.realpath(library_path)
    if (path, function) in _functions:
        return path
    if not Path(path).is_file():
        raise ValueError(f"`library_path` must be the path of a shared library, but `{library_path}` is no file")
    try:
        library = of_user(path)
    except OSError as exc:
        raise ValueError(f"`library_path` is `{library_path}`, which cannot be loaded: {exc}") from exc
    _find(library, path, function)
    return path


def _find(library: ctypes.CDLL, path: str, function: str) -> None:
    try:
        address = getattr(library, function)
    except AttributeError as exc:
        raise ValueError(
            f'the library `{path}` has no function `{function}`: declare it with `extern "C"`, and let `op_name` say what it'
            " is called. A gradient is computed by that of the same name with `_grad` behind it; `tf.stop_gradient` does"
            " without one"
        ) from exc
    _functions[path, function] = _feed.Feed(native.ipu_user_function_new(address), native.ipu_user_function_drop)


def results(outs: Mapping[str, Sequence[DTypeLike | ShapeLike]] | None) -> tuple[list[tf.DType], list[tf.TensorShape]]:
    """The types and shapes that `outs` says; sizes may be unknown in graphs that are no program, as where Keras traces."""
    if outs is None:
        return [], []
    given: Mapping[str, Any] = outs
    try:
        types = [tf.as_dtype(one) for one in given["output_types"]]
        shapes = [tf.TensorShape(one) for one in given["output_shapes"]]
    except (KeyError, TypeError) as exc:
        raise ValueError(
            f"`outs` must be a dict with the lists `output_types` and `output_shapes`, but is {outs!r}"
        ) from exc
    may_be_unknown = not tf.executing_eagerly() and not sites.on_ipu()
    if len(types) != len(shapes) or not (may_be_unknown or all(shape.is_fully_defined() for shape in shapes)):
        raise ValueError(f"`outs` must have as many types as shapes, all of them static, but is {outs!r}")
    return types, shapes


def _call(
    function: tuple[str, str],
    values: list[tf.Tensor],
    types: list[tf.DType],
    shapes: list[tf.TensorShape],
    name: str,
    attributes: str,
    known: Mapping[str, Any] | None = None,
) -> list[tf.Tensor]:
    """Adds the operation to the program being traced."""
    device = sites._device("cpu_user_operation")
    state = replicas.in_function(_functions[function].state(device))
    outputs = ops.ipu_user_operation(
        state,
        values,
        program_order.of(device),
        output_types=types,
        output_shapes=shapes,
        attributes=attributes,
        called=name,
        advance=not replicas.in_condition(),
        name=name,
    )
    if not types:
        return []
    if known is not None:
        graphs.set_attribute(outputs[0].op, _CALL, tf.compat.v1.AttrValue(s=json.dumps(known).encode()))
    return list(outputs)


@tf.RegisterGradient("IpuUserOperation")
def _gradient(op: tf.Operation, *gradients: Gradient | None) -> list[tf.Tensor | None]:
    real = op.outputs[0].op  # A tape shows another one.
    known = json.loads(real.get_attr(_CALL))
    inputs = list(real.inputs)[1 : 1 + len(real.get_attr("input_types"))]
    outputs = list(real.outputs)
    given = [
        tf.zeros_like(output) if gradient is None else gradient
        for output, gradient in zip(outputs, gradients, strict=True)
    ]
    function = (known["path"], known["function"] + "_grad")
    if function not in _functions:
        _find(of_user(known["path"]), *function)  # Loaded by now.
    data, name = [*given, *outputs, *inputs], real.get_attr("called").decode()
    found: list[tf.Tensor | None] = [None] * len(inputs)
    wanted = known["inputs"]
    calls = (
        [(name + f"_grad_{index}", [index]) for index in wanted] if known["separate"] else [(name + "_grad", wanted)]
    )
    for called, indices in calls:
        of = [inputs[index] for index in indices]
        results = _call(
            function, data, [one.dtype for one in of], [one.shape for one in of], called, known["attributes"]
        )
        for index, result in zip(indices, results, strict=True):
            found[index] = result
    return [None, *found, *[None] * (len(real.inputs) - 1 - len(inputs))]
