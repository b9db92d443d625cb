"""Compiles a function into a file that another process runs; see `embedded_runtime`."""

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
# An operation of programs that compute with the machine's numbers.
_NUMBERS = b"IpuHalfPrecision"
_MANIFEST, _FUNCTIONS, _WEIGHTS, _EXECUTABLES = "application.json", "functions.pb", "weights.npz", "executables/"
_EXECUTABLE = re.compile(rf"{_EXECUTABLES}[0-9a-f]{{32}}")
# What `zipfile`, `json` and `numpy` raise if a file is damaged, or no archive.
_DAMAGED = (zipfile.BadZipFile, zlib.error, AttributeError, EOFError, LookupError, RuntimeError)
_DAMAGED += (TypeError, ValueError)


@dataclass(frozen=True)
class Application:
    """The contents of the file."""

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
    def by_itself(self) -> bool:
        """Whether it runs on one IPU whatever the device has; with traps, a run ends differently."""
        return self.ipus == 1 and _NUMBERS not in self.functions

    @property
    def inputs(self) -> list[tf.TensorSpec]:
        """The tensors that the program is started with: its function's arguments, then its variables."""
        return stored_feeds.specs_of([self.arguments[at] for at in self.started_with])

    @property
    def started_with(self) -> list[int]:
        """The positions of those among the arguments."""
        numbered = list(enumerate(self.arguments))
        first = [at for at, one in numbered if one["kind"] == "input"]
        return first + [at for at, one in numbered if one["kind"] == "variable" and at not in self.weights]

    def elements(self, kind: str) -> list[list[tf.TensorSpec]]:
        """Returns the tensors of an element of each `infeed` or `outfeed`, in the order of the arguments."""
        return [stored_feeds.specs_of(one["elements"]) for one in self.arguments if one["kind"] == kind]


def of_program(program: programs.Program, names: Sequence[str], frozen: bool) -> Application:
    """Compiles a program into an application, for as many IPUs as its device has."""
    variables = {id(variable.handle): variable for variable in program.function.variables}
    arguments: list[dict[str, Any]] = []
    weights: dict[int, np.ndarray] = {}
    for at, tensor in enumerate(program.arguments):
        variable = variables.get(id(tensor))
        if variable is not None:
            arguments.append(_described("variable", variable.name.removesuffix(":0"), variable))
            if frozen:
                weights[at] = variable.numpy()
        elif tensor.dtype != tf.resource:
            arguments.append(_described("input", names[at] if at < len(names) else f"input_{at}", tensor))
        else:
            arguments.append(_described_state(tensor))
    kinds = [one["kind"] for one in arguments]
    if "infeed" not in kinds or "outfeed" not in kinds:
        raise ValueError(
            f"`func` uses {kinds.count('infeed')} infeeds and {kinds.count('outfeed')} outfeeds: a program that others call"
            " takes an element of each of its infeeds for each call, and enqueues the answer to each of its outfeeds, of"
            " which it has to have one at least"
        )
    with tf.device(program.device):
        executable_name, executable = program.compile(executable_cache.machine_key())
    shards, ipus = program.ipus_of_replica, _state.ipus_or_one(program.ordinal)
    return Application(
        name=os.urandom(8).hex(),
        functions=functions.definitions_of(program.function),
        arguments=arguments,
        results=[{"dtype": one.dtype.name, "shape": one.shape.as_list()} for one in program.function.outputs],
        shards=shards,
        ipus=ipus,
        ahead=ipus > shards or bool(pipelines_of(program.function)),
        weights=weights,
        key=executable_cache.machine_key(),
        executables={executable_name: executable} if executable_name else {},  # XLA may not serialize it.
    )


def save(application: Application, path: str) -> None:
    """Writes the file, whole or not at all."""
    saved = ("name", "arguments", "results", "shards", "ipus", "ahead", "key")
    manifest = {"format": _FORMAT, **{name: getattr(application, name) for name in saved}}
    weights = io.BytesIO()
    np.savez(weights, allow_pickle=False, **{str(at): value for at, value in application.weights.items()})
    with files.replacing(path) as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr(_MANIFEST, json.dumps(manifest))
        archive.writestr(_FUNCTIONS, application.functions)
        archive.writestr(_WEIGHTS, weights.getvalue())
        for name, contents in application.executables.items():
            archive.writestr(_EXECUTABLES + name, contents)


def load(path: str | os.PathLike[str]) -> Application:
    """Reads a file. Nothing is extracted: names in it are no paths."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = _entries(archive, os.path.getsize(path))
            manifest = json.loads(entries[_MANIFEST])
            if manifest.pop("format") != _FORMAT:
                raise ValueError("another release of tensorflow_ipu wrote it")
            with np.load(io.BytesIO(entries[_WEIGHTS]), allow_pickle=False) as found:
                _check_entries(found.zip.infolist(), len(entries[_WEIGHTS]))
                weights = {int(name): found[name] for name in found.files}
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
    """Reads the entries that `save` writes; others are ignored, whatever their names."""
    wanted = (_MANIFEST, _FUNCTIONS, _WEIGHTS)
    known = [one for one in archive.infolist() if one.filename in wanted or _EXECUTABLE.fullmatch(one.filename)]
    _check_entries(known, size)
    found = {entry.filename: archive.read(entry) for entry in known}
    for name in wanted:
        if name not in found:
            raise ValueError(f"it has no `{name}`")
    return found


def _check_entries(entries: Sequence[zipfile.ZipInfo], size: int) -> None:
    """Refuses entries that are ambiguous, or together larger than their archive."""
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
    known = stored_feeds.described(tensor)
    if known is not None and known["kind"] == "other":
        kind = stored_states.kind(tensor)
        known = None if kind is None else {"kind": kind}
    if known is None:
        raise ValueError(
            "`func` uses what another process does not have: a part of the host, a C++ function of the user's, or a variable"
            " that was made outside of the strategy's scope. Leave it out of the program that is compiled for others"
        )
    if known["kind"] == "outfeed" and known["mode"] != "ALL":
        raise ValueError(
            "`func` enqueues to an outfeed of mode `LAST`, which would lose answers: make one of mode `ALL`"
        )
    return known


__all__ = ["experimental_application_compile_op"]


def experimental_application_compile_op(
    func: Callable[..., Nested],
    inputs: Sequence[Nested] | None = None,
    output_path: str | os.PathLike[str] | None = None,
    freeze_variables: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Compiles a function into a file, without running it.

    It is compiled for the strategy whose scope is around, or else for `/device:IPU:0`, and for as many IPUs as that has now.

    Args:
      func: A program as `IPUStrategy.run` runs one: it takes elements of one or more infeeds, whose data do not matter, in a
        loop or a pipeline, and enqueues the answer to each to its outfeeds.
      inputs: Its arguments, tensors, of which types and shapes alone matter.
      output_path: The path of the file; in a new temporary folder if omitted.
      freeze_variables: Whether the values of variables go into the file. Otherwise they are passed at the start.
      name: A name for the temporary file.

    Returns:
      The path of the file, a string tensor.

    Raises:
      RuntimeError: A graph is being built, where nothing is compiled.
      ValueError: The function has no infeed or no outfeed, or uses what only this process has.
      tf.errors.InvalidArgumentError: XLA cannot compile it; the message says what, and a remedy.
    """
    if not tf.executing_eagerly():
        raise RuntimeError("an application is compiled in eager execution, and a graph is being built: call it outside")
    program = (
        func if isinstance(func, programs.GRAPH_FUNCTIONS) else tf.function(_without_operation(func), jit_compile=True)
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


def _without_operation(func: Callable[..., Nested]) -> Callable[..., Nested]:
    """Returns the function, returning nothing in place of an operation, which loops return without results."""

    @functools.wraps(func)
    def program(*args: tf.Tensor) -> Nested:
        returned = func(*args)
        return None if isinstance(returned, tf.Operation) else returned

    return program
