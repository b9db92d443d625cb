"""A function that compiles a program into a file, which another process runs by `embedded_runtime`."""

from __future__ import annotations

import functools
import inspect
import io
import json
import os
import re
import shutil
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._base import files
from tensorflow_ipu._base.types import Nested
from tensorflow_ipu._native import executable_cache
from tensorflow_ipu._tensorflow import functions
from tensorflow_ipu.config import _state
from tensorflow_ipu.executables._compile import current_strategy
from tensorflow_ipu.feeds import stored as stored_feeds
from tensorflow_ipu.ops import sites as stored_states
from tensorflow_ipu.pipelining import pipelines_of

_FORMAT = 2
# An operation that only programs with the floating-point arithmetic of real IPUs have.
_HALF_PRECISION = b"IpuHalfPrecision"
_MANIFEST, _FUNCTIONS, _WEIGHTS, _EXECUTABLES = "application.json", "functions.pb", "weights.npz", "executables/"
_EXECUTABLE = re.compile(rf"{_EXECUTABLES}[0-9a-f]{{32}}")
# The errors of `zipfile`, `json` and `numpy` for files that are damaged or no archives.
_DAMAGED = (zipfile.BadZipFile, zlib.error, AttributeError, EOFError, LookupError, RuntimeError)
_DAMAGED += (TypeError, ValueError)


@dataclass(frozen=True)
class Application:
    """A compiled program with everything that another process needs to run it: the contents of the file."""

    name: str
    functions: bytes
    arguments: list[dict[str, Any]]
    results: list[dict[str, Any]]
    shards: int
    ipus: int
    ahead: bool
    weights: dict[int, np.ndarray]
    key: str
    executables: dict[str, bytes]

    @property
    def runs_without_replicas(self) -> bool:
        """True if the program is for one IPU and can run there without `IpuReplicatedRun`, on a device of any size.

        Programs with the floating-point arithmetic of real IPUs need the operation for their floating-point exceptions.
        """
        return self.ipus == 1 and _HALF_PRECISION not in self.functions

    @property
    def inputs(self) -> list[tf.TensorSpec]:
        """The specs of the start-up inputs: the arguments of the function, then the variables that are not frozen."""
        return stored_feeds.specs_of([self.arguments[index] for index in self.input_indices])

    @property
    def input_indices(self) -> list[int]:
        """The indices of the start-up inputs in `arguments`."""
        kinds = [argument["kind"] for argument in self.arguments]
        indices = [index for index, kind in enumerate(kinds) if kind == "input"]
        return indices + [index for index, kind in enumerate(kinds) if kind == "variable" and index not in self.weights]

    def elements(self, kind: str) -> list[list[tf.TensorSpec]]:
        """Returns the specs of an element of each queue of a kind, "infeed" or "outfeed", in the order of the arguments."""
        return [stored_feeds.specs_of(argument["elements"]) for argument in self.arguments if argument["kind"] == kind]


def of_program(program: programs.Program, names: Sequence[str], frozen: bool) -> Application:
    """Compiles a program into an application for all IPUs of its device."""
    variables = {id(variable.handle): variable for variable in program.function.variables}
    arguments: list[dict[str, Any]] = []
    weights: dict[int, np.ndarray] = {}
    for index, tensor in enumerate(program.arguments):
        variable = variables.get(id(tensor))
        if variable is not None:
            arguments.append(_described("variable", variable.name.removesuffix(":0"), variable))
            if frozen:
                weights[index] = variable.numpy()
        elif tensor.dtype != tf.resource:
            arguments.append(_described("input", names[index] if index < len(names) else f"input_{index}", tensor))
        else:
            arguments.append(_described_state(tensor))
    kinds = [argument["kind"] for argument in arguments]
    if "infeed" not in kinds or "outfeed" not in kinds:
        raise ValueError(
            f"`func` uses {kinds.count('infeed')} infeeds and {kinds.count('outfeed')} outfeeds, but must use at least one of"
            " each: for each call, the program takes an element from each infeed and enqueues the answer to each outfeed"
        )
    with tf.device(program.device):
        executable_name, executable = program.compile(executable_cache.machine_key())
    shards, ipus = program.ipus_of_replica, _state.ipus_or_one(program.ordinal)
    return Application(
        name=os.urandom(8).hex(),
        functions=functions.definitions_of(program.function),
        arguments=arguments,
        results=[{"dtype": tensor.dtype.name, "shape": tensor.shape.as_list()} for tensor in program.function.outputs],
        shards=shards,
        ipus=ipus,
        ahead=ipus > shards or bool(pipelines_of(program.function)),
        weights=weights,
        key=executable_cache.machine_key(),
        executables={executable_name: executable}
        if executable_name
        else {},  # Empty if XLA cannot serialize the executable.
    )


def save(application: Application, path: str) -> None:
    """Writes the application to a file. If it fails, the file keeps its old contents."""
    saved = ("name", "arguments", "results", "shards", "ipus", "ahead", "key")
    manifest = {"format": _FORMAT, **{name: getattr(application, name) for name in saved}}
    weights = io.BytesIO()
    np.savez(weights, allow_pickle=False, **{str(index): value for index, value in application.weights.items()})
    with files.replacing(path) as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr(_MANIFEST, json.dumps(manifest))
        archive.writestr(_FUNCTIONS, application.functions)
        archive.writestr(_WEIGHTS, weights.getvalue())
        for name, contents in application.executables.items():
            archive.writestr(_EXECUTABLES + name, contents)


def load(path: str | os.PathLike[str]) -> Application:
    """Reads an application from a file. The archive is not extracted, so the names of its entries are never used as paths.

    Raises:
      FileNotFoundError: There is no such file.
      ValueError: The file is no application, is damaged, or is of another release.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = _entries(archive, os.path.getsize(path))
            manifest = json.loads(entries[_MANIFEST])
            if manifest.pop("format") != _FORMAT:
                raise ValueError("another release of tensorflow_ipu wrote it")
            with np.load(io.BytesIO(entries[_WEIGHTS]), allow_pickle=False) as arrays:
                _check_entries(arrays.zip.infolist(), len(entries[_WEIGHTS]))
                weights = {int(name): arrays[name] for name in arrays.files}
            executables = [name for name in entries if name.startswith(_EXECUTABLES)]
            return Application(
                functions=entries[_FUNCTIONS],
                weights=weights,
                executables={name.removeprefix(_EXECUTABLES): entries[name] for name in executables},
                **manifest,
            )
    except _DAMAGED as exc:
        raise ValueError(
            f"`executable_file` is `{os.fspath(path)}`, which is no program of `experimental_application_compile_op`: {exc}."
            " Compile it again"
        ) from exc


def _entries(archive: zipfile.ZipFile, size: int) -> dict[str, bytes]:
    """Returns the contents of the entries that `save` writes, by name. Ignores other entries."""
    required = (_MANIFEST, _FUNCTIONS, _WEIGHTS)
    entries = [
        entry for entry in archive.infolist() if entry.filename in required or _EXECUTABLE.fullmatch(entry.filename)
    ]
    _check_entries(entries, size)
    contents = {entry.filename: archive.read(entry) for entry in entries}
    for name in required:
        if name not in contents:
            raise ValueError(f"it has no `{name}`")
    return contents


def _check_entries(entries: Sequence[zipfile.ZipInfo], size: int) -> None:
    """Raises a ValueError if entries have the same name, are compressed, or are together larger than their archive."""
    for name, count in Counter(entry.filename for entry in entries).items():
        if count > 1:
            raise ValueError(f"it has `{name}` {count} times")
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"`{entry.filename}` in it is compressed")
    if sum(entry.file_size for entry in entries) > size:
        raise ValueError(f"its entries are larger than its {size} bytes")


def _described(kind: str, name: str, value: Any) -> dict[str, Any]:
    return {"kind": kind, "name": name, "dtype": value.dtype.name, "shape": value.shape.as_list()}


def _described_state(tensor: tf.Tensor) -> dict[str, Any]:
    description = stored_feeds.described(tensor)
    if description is not None and description["kind"] == "other":
        kind = stored_states.kind(tensor)
        description = None if kind is None else {"kind": kind}
    if description is None:
        raise ValueError(
            "`func` uses what another process does not have: a host callback, a C++ function of the user, or a variable"
            " created outside of the strategy's scope. Remove it from the function"
        )
    if description["kind"] == "outfeed" and description["mode"] != "ALL":
        raise ValueError("`func` enqueues to an outfeed of mode `LAST`, which loses answers: create one of mode `ALL`")
    return description


__all__ = ["experimental_application_compile_op"]


def experimental_application_compile_op(
    func: Callable[..., Nested],
    inputs: Sequence[Nested] | None = None,
    output_path: str | os.PathLike[str] | None = None,
    freeze_variables: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Compiles a function into a file, without running it.

    It is compiled for the device of the current strategy, or else for `/device:IPU:0`. Later, the program needs the
    number of IPUs that this device has now.

    Args:
      func: A program as for `IPUStrategy.run`, with a loop or a pipeline. It takes elements from one or more infeeds,
        whose data are not used. It enqueues the answer for each element to one or more outfeeds.
      inputs: The arguments of the function. Only their types and shapes matter.
      output_path: The path of the file; by default a file in a new temporary folder.
      freeze_variables: Whether the values of variables are stored in the file. Otherwise they are passed at the start.
      name: The name of the temporary file.

    Returns:
      The path of the file, a string tensor.

    Raises:
      RuntimeError: A graph is being built, so nothing can be compiled.
      ValueError: The function has no infeed or no outfeed, or uses what only this process has.
      tf.errors.InvalidArgumentError: XLA cannot compile the function. The message names the operation and a remedy.
    """
    if not tf.executing_eagerly():
        raise RuntimeError("a graph is being built, but applications are compiled in eager execution: call it outside")
    program = (
        func
        if isinstance(func, programs.GRAPH_FUNCTIONS)
        else tf.function(_dropping_operations(func), jit_compile=True)
    )
    arguments = [tf.convert_to_tensor(value) for value in inputs or ()]
    prepared = current_strategy().prepare(program, arguments)
    try:
        names = list(inspect.signature(getattr(func, "python_function", func)).parameters)
    except (TypeError, ValueError):
        names = []
    application = of_program(prepared.program, names, bool(freeze_variables))
    if output_path is not None:
        save(application, os.fspath(output_path))
        return tf.constant(os.fspath(output_path))
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, re.sub(r"[^\w.-]", "_", name or "application") + ".poplar_exec")
    try:
        save(application, path)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return tf.constant(path)


def _dropping_operations(func: Callable[..., Nested]) -> Callable[..., Nested]:
    """Returns a function that calls `func` but returns None for an operation, the result of a loop without results."""

    @functools.wraps(func)
    def program(*args: tf.Tensor) -> Nested:
        returned = func(*args)
        return None if isinstance(returned, tf.Operation) else returned

    return program
