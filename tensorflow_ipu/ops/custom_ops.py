"""Operations that users write themselves: in C++ for the host, as an expression, or for tiles, with an emulation."""

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
from tensorflow_ipu._native.library import native, of_user, ops
from tensorflow_ipu._tensorflow import graphs
from tensorflow_ipu.feeds import program_order
from tensorflow_ipu.feeds._native_object import NativeObject, SharedObjects
from tensorflow_ipu.ops import sites
from tensorflow_ipu.ops.vertex_edsl import codelet_expression_op

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import DTypeLike, Gradient, ShapeLike, TensorLike

__all__ = ["codelet_expression_op", "compile_user_operation", "cpu_user_operation", "precompiled_user_op"]


class Emulation(NamedTuple):
    """What was registered for an operation: what computes it, and its gradients."""

    function: Callable[..., Any] | str
    gradient: Callable[..., Any] | None


# By the operation's name, and that of its library's file, or None for a library of any name.
_registered: dict[tuple[str, str | None], Emulation] = {}


def register_user_op_emulation(
    op_name: str,
    function: Callable[..., Any] | str | os.PathLike[str],
    gradient: Callable[..., Any] | None = None,
    *,
    library: str | os.PathLike[str] | None = None,
) -> None:
    """Registers an emulation of an operation of `custom_ops.precompiled_user_op`, whose own code only tiles can run.

    Register before programs are traced; the last call for a name holds.

    Args:
      op_name: The operation's name, as `precompiled_user_op` is called with it: `"Build"` where it is not.
      function: A function of the inputs, tensors, that returns the outputs: one tensor or a list, made by TensorFlow's
        operations. One with a parameter `attributes` gets the operation's, a string, by name. Or the path of a shared
        library, whose functions `op_name` and `<op_name>_grad` are as `custom_ops.cpu_user_operation` calls them.
      gradient: A function of three lists of tensors, the gradients of the outputs, the outputs, and the inputs, that
        returns a list with a gradient for each input, or None for one that has none. It gets the operation's
        `gradient_attributes` likewise. If omitted, TensorFlow differentiates `function`.
      library: The name of the operation's library, with or without its folder, where several have an operation
        `op_name`. If omitted, it stands in for those of all libraries that have none of their own.

    Raises:
      TypeError: An argument is of another type.
      ValueError: `op_name` is empty, the library in C++ does not exist, or comes with a `gradient` in Python.
    """
    check_instance("op_name", op_name, str, "a string")
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
    library = Path(library_path).name
    _run_file_of_emulations()
    emulation = _registered.get((op_name, library)) or _registered.get((op_name, None))
    if emulation is not None:
        return emulation
    others = ", ".join(f"`{name}`" + (f" of `{of}`" if of else "") for name, of in _registered)
    raise NotImplementedError(
        f"`precompiled_user_op` calls `{op_name}` of `{library}`, whose code is for the tiles of an IPU, and there is no"
        f' emulation of it: say what it computes by `ops.register_user_op_emulation("{op_name}", function)` before the'
        " program is traced, in Python over TensorFlow's operations or as a library in C++; for a script that is to stay"
        " as it is, in a file of its own: `python -m tensorflow_ipu --emulations=FILE SCRIPT`, or the environment variable"
        f" `{environment.EMULATIONS_VARIABLE}=FILE`. docs/porting.md#operations-for-tiles has an example."
        + (f" Registered are {others}" if others else "")
    )


@functools.cache
def _run_file_of_emulations() -> None:
    path = environment.emulations()
    if path is not None:
        runpy.run_path(path)


def _called(function: Callable[..., Any], arguments: Sequence[Any], attributes: str | None) -> list[Any]:
    """Calls a Python function of the user's, and returns its results as a list."""
    named = {"attributes": attributes or ""} if "attributes" in inspect.signature(function).parameters else {}
    result = function(*arguments, **named)
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
    """Calls the emulation that `ops.register_user_op_emulation` registered for an operation with code for tiles.

    Args:
      inputs: Tensors.
      library_path: The path of the operation's library, which need not exist: its name chooses among emulations that were
        registered for a library.
      gp_path: The path of its code for tiles, which is not opened either.
      outs: As for `cpu_user_operation`. What the emulation returns is held against it.
      name: A name for the operation.
      op_name: The name of the function in the library.
      separate_gradients: As for `cpu_user_operation`; the numbers are the same.
      inputs_with_gradients: The numbers of those inputs that have a gradient; all if omitted.
      attributes: A string that the emulation gets.
      gradient_attributes: A string that its gradient function gets.

    Returns:
      The outputs.

    Raises:
      NotImplementedError: There is no emulation of the operation.
      RuntimeError: The emulation is in C++, and the call is not in a program that is being traced.
      ValueError: `attributes` or `gradient_attributes` is no string; `outs` has no types and static shapes, or the
        emulation returns others; `inputs_with_gradients` has the number of no input.
    """
    del gp_path
    values, wanted = checked(inputs, inputs_with_gradients, attributes, gradient_attributes)
    types, shapes = results(outs)
    function, gradient_function = emulation_of(op_name, library_path)
    if isinstance(function, str):
        return cpu_user_operation(
            values, function, outs, name, op_name, separate_gradients, wanted, attributes, gradient_attributes
        )

    def outputs_of(*arguments: tf.Tensor) -> list[tf.Tensor]:
        outputs = [tf.convert_to_tensor(output) for output in _called(function, arguments, attributes)]
        actual = [(output.dtype, output.shape) for output in outputs]
        if len(outputs) != len(types) or not all(
            dtype == type_ and shape.is_compatible_with(expected)
            for (dtype, shape), type_, expected in zip(actual, types, shapes, strict=True)
        ):
            raise ValueError(
                f"`outs` says that `{op_name}` has the outputs {_described(types, shapes)}, and its emulation returns"
                f" {_described([dtype for dtype, _ in actual], [shape for _, shape in actual])}"
            )
        return [tf.ensure_shape(output, shape) for output, shape in zip(outputs, shapes, strict=True)]

    with tf.name_scope(name):
        if gradient_function is None:
            passed = [value if index in wanted else tf.stop_gradient(value) for index, value in enumerate(values)]
            return outputs_of(*passed)

        @tf.custom_gradient
        def operation(*arguments: tf.Tensor) -> Any:
            outputs = outputs_of(*arguments)

            def gradient(*gradients: tf.Tensor) -> list[Gradient | None]:
                lists = [list(gradients), list(outputs), list(arguments)]
                results = _called(gradient_function, lists, gradient_attributes)
                if len(results) != len(arguments):
                    raise ValueError(
                        f"`gradient` of `register_user_op_emulation`, `{gradient_function!r}`, returns {len(results)}"
                        f" gradients for {len(arguments)} inputs: let it return one for each, or None for one that has none"
                    )
                return [result if index in wanted else None for index, result in enumerate(results)]

            return outputs, gradient

        return list(operation(*values))


def _described(types: Sequence[tf.DType], shapes: Sequence[tf.TensorShape]) -> str:
    texts = (f"{dtype.name}{shape.as_list()}" for dtype, shape in zip(types, shapes, strict=True))
    return ", ".join(texts) or "none"


# What the gradient has to know of an operation; TensorFlow ignores it.
_CALL = "_ipu_user_call"

# The path of a library and the name of one of its functions: what names it to programs. Libraries stay loaded.
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
    """Calls a C++ function of a shared library in the midst of a program, in the order of its uses of queues.

    The library has a function of this form, which reads the inputs at `data` and writes the outputs, all in row-major
    order:

        extern "C" void Callback(
            const std::vector<const void*>& data, const std::vector<uint32_t>& number_of_elements,
            const std::vector<void*>& outputs, const std::string& attributes, const std::string& name);

    It runs on a thread of the program, on the program's own memory: it must keep no pointer, and not wait for another
    replica, which may call it at the same time. What it throws ends the run with its message. The gradient is computed by
    another such function, `Callback_grad`, whose `data` are the gradients of all outputs, the outputs, and the inputs, one
    after the other; its outputs are the gradients of the inputs.

    Args:
      inputs: Tensors of static shape.
      library_path: The path of the shared library, which is loaded now; see `compile_user_operation`.
      outs: `{"output_types": [...], "output_shapes": [...]}`: types and static shapes of the outputs; none if omitted.
        In a graph that is no program, as where Keras traces a layer, sizes may be unknown.
      name: A name for the operation, which the function gets.
      op_name: The name of the function.
      separate_gradients: Whether the gradient function is called once for each input, with that one's gradient as its only
        output, and `_grad_` with the number of the input after `name`. Else it is called once, for all.
      inputs_with_gradients: The numbers of those inputs that have a gradient; all if omitted.
      attributes: A string that the function gets.
      gradient_attributes: A string that the gradient function gets.

    Returns:
      The outputs.

    Raises:
      RuntimeError: The call is not in a program that is being traced.
      ValueError: `attributes` or `gradient_attributes` is no string; `outs` has no types and static shapes;
        `inputs_with_gradients` has the number of no input; the library cannot be loaded, or lacks the function.
    """
    values, wanted = checked(inputs, inputs_with_gradients, attributes, gradient_attributes)
    path = _load(library_path, op_name)
    known = {"path": path, "function": op_name, "separate": bool(separate_gradients), "inputs": wanted}
    known["attributes"] = gradient_attributes or ""
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
    atexit.register(_remove, folder, os.getpid())
    library = Path(folder, f"lib{Path(files[0]).stem}.so")
    # TensorFlow's wheels, and so this package, have the strings and lists of the newer ABI.
    fixed = ["-std=c++17", "-O2", "-fPIC", "-shared", "-D_GLIBCXX_USE_CXX11_ABI=1"]
    compiler = shlex.split(os.environ.get("CXX") or "g++")
    try:
        command = [*compiler, *fixed, *flags, *files, "-o", str(library)]
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as exc:
        raise ValueError(
            f"there is no compiler `{compiler[0]}`: install g++ (`apt-get install g++`), let the variable `CXX` name yours,"
            " or compile the library elsewhere"
        ) from exc
    except subprocess.CalledProcessError as exc:
        raise ValueError(f"`{compiler[0]}` does not compile `sources`:\n{exc.stderr}") from exc
    return str(library)


def _remove(folder: str, owner: int) -> None:
    """Removes a folder at the end of the process that made it, and not of one that was forked from that."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def checked(
    inputs: Sequence[TensorLike],
    inputs_with_gradients: Sequence[int] | None,
    attributes: str | None,
    gradient_attributes: str | None,
) -> tuple[list[tf.Tensor], list[int]]:
    """Checks arguments. Returns the inputs as tensors, and the numbers of those that have a gradient."""
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
    if not Path(library_path).is_file():
        raise ValueError(f"`library_path` must be the path of a shared library, but `{library_path}` is no file")
    path = os.path.realpath(library_path)
    _native_of((path, function))
    return path


def _native_of(function: tuple[str, str]) -> NativeObject:
    """Returns what names a function to programs. The first call loads the library."""
    return _functions.get(
        function,
        lambda: NativeObject(native.ipu_user_function_new(_address(*function)), native.ipu_user_function_drop),
    )


def _address(path: str, function: str) -> Any:
    try:
        library = of_user(path)
    except OSError as exc:
        raise ValueError(f"`library_path` is `{path}`, which cannot be loaded: {exc}") from exc
    try:
        return getattr(library, function)
    except AttributeError as exc:
        raise ValueError(
            f'the library `{path}` has no function `{function}`: declare it with `extern "C"`, and let `op_name` say what it'
            " is called. A gradient is computed by that of the same name with `_grad` after it; `tf.stop_gradient` does"
            " without one"
        ) from exc


def results(outs: Mapping[str, Sequence[DTypeLike | ShapeLike]] | None) -> tuple[list[tf.DType], list[tf.TensorShape]]:
    """Returns the types and shapes of `outs`; sizes may be unknown in graphs that are no program, as in Keras's."""
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
    known: Mapping[str, Any] | None = None,
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
    if known is not None:
        graphs.set_attribute(outputs[0].op, _CALL, tf.compat.v1.AttrValue(s=json.dumps(known).encode()))
    return list(outputs)


@tf.RegisterGradient("IpuUserOperation")
def _gradient(op: tf.Operation, *gradients: Gradient | None) -> list[tf.Tensor | None]:
    real = op.outputs[0].op  # A tape shows another one.
    known = json.loads(real.get_attr(_CALL))
    inputs = list(real.inputs)[1 : 1 + len(real.get_attr("input_types"))]
    outputs = list(real.outputs)
    of_outputs = [
        tf.zeros_like(output) if gradient is None else gradient
        for output, gradient in zip(outputs, gradients, strict=True)
    ]
    function = (known["path"], known["function"] + "_grad")
    data, name = [*of_outputs, *outputs, *inputs], real.get_attr("called").decode()
    of_inputs: list[tf.Tensor | None] = [None] * len(inputs)
    wanted = known["inputs"]
    calls = (
        [(name + f"_grad_{index}", [index]) for index in wanted] if known["separate"] else [(name + "_grad", wanted)]
    )
    for called, indices in calls:
        sources = [inputs[index] for index in indices]
        types, shapes = [source.dtype for source in sources], [source.shape for source in sources]
        results = _call(function, data, types, shapes, called, known["attributes"])
        for index, result in zip(indices, results, strict=True):
            of_inputs[index] = result
    return [None, *of_inputs, *[None] * (len(real.inputs) - 1 - len(inputs))]
