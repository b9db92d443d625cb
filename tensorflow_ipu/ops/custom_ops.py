"""Operations written by users: C++ functions for the host, elementwise expressions, and emulated operations for tiles."""

from __future__ import annotations

import atexit
import functools
import inspect
import json
import os
import runpy
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._base import environment
from tensorflow_ipu._base.checks import check_instance
from tensorflow_ipu._native.library import load_user_library, native, ops
from tensorflow_ipu._tensorflow import graphs
from tensorflow_ipu.feeds import program_order
from tensorflow_ipu.feeds._native_object import NativeObject, SharedObjects
from tensorflow_ipu.ops import sites
from tensorflow_ipu.ops.vertex_edsl import codelet_expression_op

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import DTypeLike, Gradient, ShapeLike, TensorLike

__all__ = ["codelet_expression_op", "compile_user_operation", "cpu_user_operation", "precompiled_user_op"]


class Emulation(NamedTuple):
    """The functions that emulate an operation and its gradient."""

    function: Callable[..., Any] | str
    gradient: Callable[..., Any] | None


# Keys are the operation's name and the file name of its library; None stands in for any library.
_registered: dict[tuple[str, str | None], Emulation] = {}


def register_user_op_emulation(
    op_name: str,
    function: Callable[..., Any] | str | os.PathLike[str],
    gradient: Callable[..., Any] | None = None,
    *,
    library: str | os.PathLike[str] | None = None,
) -> None:
    """Registers an emulation for `custom_ops.precompiled_user_op`, whose operations have code that only tiles can run.

    Register emulations before programs are traced. A later call for the same name replaces the emulation.

    Args:
      op_name: The `op_name` that `precompiled_user_op` is called with, whose default is `"Build"`.
      function: A Python function from the input tensors to one output or a list of outputs. It uses TensorFlow's
        operations. Its parameter `attributes`, if any, gets the operation's `attributes`, a string. Alternatively, the
        path of a shared library with the functions `op_name` and `<op_name>_grad`, as
        `custom_ops.cpu_user_operation` calls them.
      gradient: A function of three lists of tensors: the gradients of the outputs, the outputs, and the inputs. It
        returns a list with a gradient, or None, for each input. Its parameter `attributes`, if any, gets the
        operation's `gradient_attributes`. If omitted, TensorFlow differentiates `function`.
      library: The file name of the operation's library, with or without its folder, if several libraries have an
        operation `op_name`. If omitted, the emulation is used for all libraries without their own
        emulation.

    Raises:
      TypeError: An argument has another type.
      ValueError: `op_name` is empty, the library of `function` does not exist, or there are both a library and a
        `gradient`.
    """
    check_instance("op_name", op_name, str, "a string")
    if not op_name:
        raise ValueError('`op_name` is empty; pass the `op_name` of `precompiled_user_op`, whose default is `"Build"`')
    if gradient is not None and not callable(gradient):
        raise TypeError(f"`gradient` must be a function or None, but is {gradient!r}")
    if isinstance(function, (str, os.PathLike)):
        path = os.fspath(function)
        if not Path(path).is_file():
            raise ValueError(
                f"`function` is `{path}`, which is no file; pass a function or the path of a shared library"
            )
        if gradient is not None:
            raise ValueError(
                f"`gradient` must be omitted if `function` is a library: its function `{op_name}_grad` is called"
            )
        function = path
    elif not callable(function):
        raise TypeError(f"`function` must be a function or the path of a shared library, but is {function!r}")
    _registered[op_name, None if library is None else Path(library).name] = Emulation(function, gradient)


def _find_emulation(op_name: str, library_path: str | os.PathLike[str]) -> Emulation:
    library = Path(library_path).name
    _run_file_of_emulations()
    emulation = _registered.get((op_name, library)) or _registered.get((op_name, None))
    if emulation is not None:
        return emulation
    registered = ", ".join(f"`{name}`" + (f" of `{file_name}`" if file_name else "") for name, file_name in _registered)
    raise NotImplementedError(
        f"`precompiled_user_op` calls `{op_name}` of `{library}`, whose code is for the tiles of an IPU and has no"
        f' emulation. Before the program is traced, call `ops.register_user_op_emulation("{op_name}", function)` with a'
        " function in Python or a library in C++ that computes the same. If the script must not change, write the call to"
        " a separate file. `python -m tensorflow_ipu --emulations=FILE SCRIPT` runs the file before the script, and so"
        f" does the environment variable `{environment.EMULATIONS_VARIABLE}=FILE`. docs/porting.md#operations-for-tiles"
        " has an example." + (f" There are emulations of {registered}" if registered else "")
    )


@functools.cache
def _run_file_of_emulations() -> None:
    path = environment.emulations()
    if path is not None:
        runpy.run_path(path)


def _call_python(function: Callable[..., Any], arguments: Sequence[Any], attributes: str | None) -> list[Any]:
    """Calls the Python function of an emulation. Returns its results as a list."""
    options = {"attributes": attributes or ""} if "attributes" in inspect.signature(function).parameters else {}
    result = function(*arguments, **options)
    if result is None:
        return []
    return list(result) if isinstance(result, (list, tuple)) else [result]


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
    """Calls an operation with code for tiles, by the emulation that `ops.register_user_op_emulation` registered for it.

    Args:
      inputs: Tensors.
      library_path: The path of the operation's library. It need not exist: only its file name is used, to find an
        emulation that was registered for a library.
      gp_path: The path of the operation's code for tiles. Not used.
      outs: The types and shapes of the outputs, as for `cpu_user_operation`. The outputs of the emulation must
        match.
      name: A name for the operation.
      op_name: The name of the function in the library.
      separate_gradients: As for `cpu_user_operation`, but without effect on the results.
      inputs_with_gradients: The indices of the inputs that have a gradient; all if omitted.
      attributes: A string that is passed to the emulation.
      gradient_attributes: A string that is passed to its gradient function.

    Returns:
      The outputs.

    Raises:
      NotImplementedError: There is no emulation of the operation.
      RuntimeError: The emulation is in C++, and the call is not in a program that is being traced.
      ValueError: `attributes` or `gradient_attributes` is not a string; `outs` lacks types or static shapes, or the
        emulation does not match them; or `inputs_with_gradients` has an index out of range.
    """
    del gp_path
    values, differentiable = _check_inputs(inputs, inputs_with_gradients, attributes, gradient_attributes)
    types, shapes = _parse_outs(outs)
    function, gradient_function = _find_emulation(op_name, library_path)
    if isinstance(function, str):
        return cpu_user_operation(
            values, function, outs, name, op_name, separate_gradients, differentiable, attributes, gradient_attributes
        )

    def outputs_of(*arguments: tf.Tensor) -> list[tf.Tensor]:
        outputs = [tf.convert_to_tensor(output) for output in _call_python(function, arguments, attributes)]
        actual = [(output.dtype, output.shape) for output in outputs]
        if len(outputs) != len(types) or not all(
            dtype == type_ and shape.is_compatible_with(expected)
            for (dtype, shape), type_, expected in zip(actual, types, shapes, strict=True)
        ):
            raise ValueError(
                f"`outs` describes the outputs of `{op_name}` as {_describe(types, shapes)}, but its emulation returns"
                f" {_describe([dtype for dtype, _ in actual], [shape for _, shape in actual])}"
            )
        return [tf.ensure_shape(output, shape) for output, shape in zip(outputs, shapes, strict=True)]

    with tf.name_scope(name):
        if gradient_function is None:
            arguments = [
                value if index in differentiable else tf.stop_gradient(value) for index, value in enumerate(values)
            ]
            return outputs_of(*arguments)

        @tf.custom_gradient
        def operation(*arguments: tf.Tensor) -> Any:
            outputs = outputs_of(*arguments)

            def gradient(*gradients: tf.Tensor) -> list[Gradient | None]:
                lists = [list(gradients), list(outputs), list(arguments)]
                results = _call_python(gradient_function, lists, gradient_attributes)
                if len(results) != len(arguments):
                    raise ValueError(
                        f"`gradient` of `register_user_op_emulation`, `{gradient_function!r}`, returns {len(results)}"
                        f" gradients for {len(arguments)} inputs; return a gradient or None for each"
                    )
                return [result if index in differentiable else None for index, result in enumerate(results)]

            return outputs, gradient

        return list(operation(*values))


def _describe(types: Sequence[tf.DType], shapes: Sequence[tf.TensorShape]) -> str:
    texts = (f"{dtype.name}{shape.as_list()}" for dtype, shape in zip(types, shapes, strict=True))
    return ", ".join(texts) or "none"


# The attribute of an operation that describes the call of its gradient function, as JSON. TensorFlow ignores it.
_CALL = "_ipu_user_call"

# Keys are the path of a library and the name of one of its functions. Libraries stay loaded.
_functions = SharedObjects()


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
    """Calls a C++ function of a shared library from a program.

    Calls of such functions and operations on queues run in the order in which they are traced. The function has the form
    below. It reads the inputs at `data` and writes the outputs, all in row-major order:

        extern "C" void Callback(
            const std::vector<const void*>& data, const std::vector<uint32_t>& number_of_elements,
            const std::vector<void*>& outputs, const std::string& attributes, const std::string& name);

    The function runs on a thread of the program and accesses the program's memory directly. So it must not keep pointers.
    Several replicas may call it at the same time, so it must not wait for other replicas. If it throws an exception, the
    run ends with the exception's message.

    A second function of this form, `Callback_grad`, computes the gradients. Its `data` are the gradients of all
    outputs, then the outputs, then the inputs. Its outputs are the gradients of the inputs.

    Args:
      inputs: Tensors of static shape.
      library_path: The path of the shared library, which this call loads; see `compile_user_operation`.
      outs: `{"output_types": [...], "output_shapes": [...]}`: the types and static shapes of the outputs; none if
        omitted. Outside of programs, sizes may be unknown in a graph, for example while Keras traces a layer.
      name: A name for the operation, which is passed to the function.
      op_name: The name of the function.
      separate_gradients: Whether the gradient function is called once for each input. Its only output is then the
        gradient of that input, and it gets the name `<name>_grad_<index of the input>`. Otherwise one call computes all
        gradients.
      inputs_with_gradients: The indices of the inputs that have a gradient; all if omitted.
      attributes: A string that is passed to the function.
      gradient_attributes: A string that is passed to the gradient function.

    Returns:
      The outputs.

    Raises:
      RuntimeError: The call is not in a program that is being traced.
      ValueError: `attributes` or `gradient_attributes` is not a string; `outs` lacks types or static shapes;
        `inputs_with_gradients` has an index out of range; the library cannot be loaded, or lacks the function.
    """
    values, differentiable = _check_inputs(inputs, inputs_with_gradients, attributes, gradient_attributes)
    path = _load(library_path, op_name)
    gradient_call = {"path": path, "function": op_name, "separate": bool(separate_gradients), "inputs": differentiable}
    gradient_call["attributes"] = gradient_attributes or ""
    return _call((path, op_name), values, *_parse_outs(outs), name, attributes or "", gradient_call)


def compile_user_operation(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], flags: Sequence[str] = ()
) -> str:
    """Compiles C++ files to a library for `cpu_user_operation`, by g++ or the compiler of the variable `CXX`.

    Args:
      sources: The path of a file, or several.
      flags: Additional flags for the compiler.

    Returns:
      The path of the library, which is removed when the process ends.

    Raises:
      ValueError: `sources` is empty or not the path of a file, there is no compiler, or the compiler reports
        errors. The message contains them.
    """
    files = [os.fspath(file) for file in ([sources] if isinstance(sources, (str, os.PathLike)) else sources)]
    if not files:
        raise ValueError("`sources` must be the path of a C++ file, or several, but is empty")
    for file in files:
        if "\n" in file:
            raise ValueError(
                f"`sources` must be paths of C++ files, but `{file.strip().splitlines()[0]}`... is code: write it to a"
                " file"
            )
        if not Path(file).is_file():
            raise ValueError(f"`sources` must be paths of C++ files, but `{file}` is not a file")
    folder = tempfile.mkdtemp(prefix="ipu_user_operation_")
    atexit.register(_remove, folder, os.getpid())
    library = Path(folder, f"lib{Path(files[0]).stem}.so")
    # TensorFlow's wheels and this package use the newer C++ ABI of strings and lists.
    required_flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-D_GLIBCXX_USE_CXX11_ABI=1"]
    compiler = shlex.split(os.environ.get("CXX") or "g++")
    try:
        command = [*compiler, *required_flags, *flags, *files, "-o", str(library)]
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as exc:
        raise ValueError(
            f"there is no compiler `{compiler[0]}`; install g++ (`apt-get install g++`), set the environment variable"
            " `CXX` to your compiler, or compile the library elsewhere"
        ) from exc
    except subprocess.CalledProcessError as exc:
        raise ValueError(f"`{compiler[0]}` does not compile `sources`:\n{exc.stderr}") from exc
    return str(library)


def _remove(folder: str, owner: int) -> None:
    """Removes a folder when the process `owner` ends. In a forked child, does nothing."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _check_inputs(
    inputs: Sequence[TensorLike],
    inputs_with_gradients: Sequence[int] | None,
    attributes: str | None,
    gradient_attributes: str | None,
) -> tuple[list[tf.Tensor], list[int]]:
    """Returns the inputs as tensors, and the indices of the inputs that have a gradient."""
    for argument, value in (("attributes", attributes), ("gradient_attributes", gradient_attributes)):
        if value is not None and not isinstance(value, str):
            raise ValueError(f"Expected {argument} to be a 'str' type, but was {type(value).__name__}: `{value!r}`")
    values = [tf.convert_to_tensor(value) for value in inputs]
    differentiable = list(range(len(values)) if inputs_with_gradients is None else inputs_with_gradients)
    if any(not isinstance(index, int) or not 0 <= index < len(values) for index in differentiable):
        raise ValueError(
            f"`inputs_with_gradients` must have indices of `inputs`, 0 to {len(values) - 1}, but is {differentiable!r}"
        )
    return values, differentiable


def _load(library_path: str | os.PathLike[str], function: str) -> str:
    """Loads a function of a library. Returns the real path of the library, the key of `_functions`."""
    if not Path(library_path).is_file():
        raise ValueError(f"`library_path` must be the path of a shared library, but `{library_path}` is no file")
    path = os.path.realpath(library_path)
    _native_of((path, function))
    return path


def _native_of(function: tuple[str, str]) -> NativeObject:
    """Returns the native object of a function, which programs use to find it. The first call loads the library."""
    return _functions.get(
        function,
        lambda: NativeObject(native.ipu_user_function_new(_address(*function)), native.ipu_user_function_drop),
    )


def _address(path: str, function: str) -> Any:
    try:
        library = load_user_library(path)
    except OSError as exc:
        raise ValueError(f"`library_path` is `{path}`, which cannot be loaded: {exc}") from exc
    try:
        return getattr(library, function)
    except AttributeError as exc:
        raise ValueError(
            f'the library `{path}` has no function `{function}`: declare it with `extern "C"`, and pass its name as'
            " `op_name`. The function whose name ends in `_grad` computes the gradient; if none is needed, use"
            " `tf.stop_gradient`"
        ) from exc


def _parse_outs(
    outs: Mapping[str, Sequence[DTypeLike | ShapeLike]] | None,
) -> tuple[list[tf.DType], list[tf.TensorShape]]:
    """Returns the types and shapes of `outs`. Outside of programs, sizes may be unknown in graphs, such as Keras's."""
    if outs is None:
        return [], []
    entries: Mapping[str, Any] = outs
    try:
        types = [tf.as_dtype(entry) for entry in entries["output_types"]]
        shapes = [tf.TensorShape(entry) for entry in entries["output_shapes"]]
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
    gradient_call: Mapping[str, Any] | None = None,
) -> list[tf.Tensor]:
    device = sites.device_of_program("cpu_user_operation")
    state = programs.in_function(_native_of(function).state(device))
    outputs = ops.ipu_user_operation(
        state,
        values,
        program_order.of(device),
        output_types=types,
        output_shapes=shapes,
        attributes=attributes,
        called=name,
        advance=not programs.in_condition(),
        name=name,
    )
    if not types:
        return []
    if gradient_call is not None:
        graphs.set_attribute(outputs[0].op, _CALL, tf.compat.v1.AttrValue(s=json.dumps(gradient_call).encode()))
    return list(outputs)


@tf.RegisterGradient("IpuUserOperation")
def _gradient(op: tf.Operation, *gradients: Gradient | None) -> list[tf.Tensor | None]:
    real = op.outputs[0].op  # A `tf.GradientTape` passes a mock operation.
    gradient_call = json.loads(real.get_attr(_CALL))
    inputs = list(real.inputs)[1 : 1 + len(real.get_attr("input_types"))]
    outputs = list(real.outputs)
    output_gradients = [
        tf.zeros_like(output) if gradient is None else gradient
        for output, gradient in zip(outputs, gradients, strict=True)
    ]
    function = (gradient_call["path"], gradient_call["function"] + "_grad")
    data, name = [*output_gradients, *outputs, *inputs], real.get_attr("called").decode()
    input_gradients: list[tf.Tensor | None] = [None] * len(inputs)
    differentiable = gradient_call["inputs"]
    calls = (
        [(name + f"_grad_{index}", [index]) for index in differentiable]
        if gradient_call["separate"]
        else [(name + "_grad", differentiable)]
    )
    for call_name, indices in calls:
        sources = [inputs[index] for index in indices]
        types, shapes = [source.dtype for source in sources], [source.shape for source in sources]
        results = _call(function, data, types, shapes, call_name, gradient_call["attributes"])
        for index, result in zip(indices, results, strict=True):
            input_gradients[index] = result
    return [None, *input_gradients, *[None] * (len(real.inputs) - 1 - len(inputs))]
