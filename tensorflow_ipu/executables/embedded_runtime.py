"""Runs a program that another process has compiled into a file, for any number of threads that call it."""

from __future__ import annotations

import collections
import concurrent.futures
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._base.checks import is_int
from tensorflow_ipu.executables import _application
from tensorflow_ipu.executables._compile import current_strategy
from tensorflow_ipu.executables._engine import Engine
from tensorflow_ipu.replicas import ipus_or_one

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import TensorLike

__all__ = [
    "RuntimeContext",
    "Signature",
    "embedded_runtime_call",
    "embedded_runtime_start",
    "embedded_runtime_start_and_call",
    "embedded_runtime_stop",
]

_DEFAULT_TIMEOUT_US = 5000


@dataclass(frozen=True)
class Signature:
    """What a program takes and gives, each a list of `tf.TensorSpec` with names.

    Attributes:
      inputs: What it is started with: its function's arguments, then its variables, if they are not frozen.
      streamed_inputs: What each call brings: an element of its infeed; of several infeeds, of one after the other. A name
        that several have is preceded by the number of the infeed, as in `0.x`.
      streamed_outputs: What each call is answered: an element of its outfeed, or outfeeds, likewise.
    """

    inputs: list[tf.TensorSpec]
    streamed_inputs: list[tf.TensorSpec]
    streamed_outputs: list[tf.TensorSpec]


class RuntimeContext:
    """A program that runs; `embedded_runtime_start` makes it. It stops when nobody holds it any more."""

    def __init__(self, name: str, executable_file: str, executable_proto: Signature, start_output: Engine) -> None:
        """Takes what `embedded_runtime_start` made; not for users.

        Args:
          name: The name of the application.
          executable_file: The path of its file.
          executable_proto: What it takes and gives.
          start_output: The engine that runs it.
        """
        self._name = name
        self._file = executable_file
        self._signature = executable_proto
        self._engine = start_output
        self._finalizer = weakref.finalize(self, start_output.stop)

    def start_output(self) -> tf.Tensor:
        """The name of the application, as a tensor: it has started."""
        return tf.constant(self._name)

    def name(self) -> str:
        """The name that it was given."""
        return self._name

    def signature(self) -> Signature:
        """What it takes and gives."""
        return self._signature

    def output_types(self) -> list[tf.DType]:
        """The types of what a call is answered."""
        return [spec.dtype for spec in self._signature.streamed_outputs]

    def __repr__(self) -> str:
        return f"<RuntimeContext {self._name} of {self._file}>"


def embedded_runtime_start(
    executable_file: str | os.PathLike[str],
    inputs: Sequence[TensorLike] | Mapping[str, TensorLike],
    name: str,
    timeout: int | None = None,
) -> RuntimeContext:
    """Starts a program of `experimental_application_compile_op`: it runs until it is stopped.

    It runs on the device of the strategy whose scope is around, or else on `/device:IPU:0`, which has as many IPUs as the one
    that it was compiled for. A program for one IPU runs on a larger device too, which runs as many of them at a time as it
    has IPUs. On another kind of processor, or with other versions, it is compiled anew.

    Args:
      executable_file: The path of the file.
      inputs: What it is started with, in the order of `signature().inputs`, or by their names.
      name: A name for it.
      timeout: How long a pipeline waits for the next call before it goes on without, in microseconds; 5000 if omitted. A
        program of several replicas likewise. Others answer each call by itself.

    Returns:
      What to call it by.

    Raises:
      FileNotFoundError: There is no such file.
      RuntimeError: A graph is being built, or other applications have the device's IPUs.
      TypeError: `inputs` is neither a list nor a dict.
      ValueError: The file is none of ours; `inputs` are more or less than it takes, or one has another shape or type;
        `timeout` is not positive; the device has another number of IPUs.
    """
    if not tf.executing_eagerly():
        raise RuntimeError("an application is started in eager execution, and a graph is being built: start it outside")
    timeout = _DEFAULT_TIMEOUT_US if timeout is None else timeout
    if not is_int(timeout) or timeout <= 0:
        raise ValueError(f"`timeout` must be a positive number of microseconds, but is {timeout!r}")
    application = _application.load(executable_file)
    signature = Signature(
        application.inputs, _in_a_row(application.elements("infeed")), _in_a_row(application.elements("outfeed"))
    )
    extended = current_strategy().extended
    ipus = ipus_or_one(extended.ordinal)
    if ipus != application.ipus and not (application.by_itself and ipus > 1):
        raise ValueError(
            f"`executable_file` is `{os.fspath(executable_file)}`, which was compiled for a device of {application.ipus} IPUs,"
            f" and `/device:IPU:{extended.ordinal}` has {ipus}: configure it so, or compile again"
        )
    values = _checked(_listed(inputs, signature.inputs), signature.inputs, "Embedded application runtime expects")
    engine = Engine(application, values, extended.ipu_device, ipus, timeout)
    return RuntimeContext(name, os.fspath(executable_file), signature, engine)


def embedded_runtime_call(
    inputs: Sequence[TensorLike], context: RuntimeContext, timeout_seconds: float | None = None
) -> list[tf.Tensor]:
    """Calls a program that was started, and waits for its answer. Any number of threads may call at once.

    Args:
      inputs: What a call brings: `signature().streamed_inputs`, in order.
      context: What `embedded_runtime_start` returned.
      timeout_seconds: How long to wait for the answer at most, in seconds; for ever if omitted. The SDK's function has no
        such argument.

    Returns:
      The answer: `signature().streamed_outputs`.

    Raises:
      RuntimeError: The program was stopped.
      ValueError: `inputs` are more or less than it takes, or one has another shape.
      TypeError: One has another type.
      tf.errors.DeadlineExceededError: There was no answer in time.
      tf.errors.OpError: The program has failed.
    """
    signature = context.signature()
    if tf.executing_eagerly():
        return [tf.convert_to_tensor(one) for one in _call(inputs, context, timeout_seconds)]
    values = _checked(list(inputs), signature.streamed_inputs, "Embedded application call expects", TypeError)
    found = tf.numpy_function(
        lambda *given: _call(given, context, timeout_seconds), values, context.output_types(), stateful=True
    )
    for one, spec in zip(found, signature.streamed_outputs, strict=True):
        one.set_shape(spec.shape)
    return list(found)


def embedded_runtime_stop(context: RuntimeContext) -> None:
    """Stops a program, as the SDK cannot: calls that it has not answered fail, and so do those that come.

    Args:
      context: What `embedded_runtime_start` returned.
    """
    context._finalizer()


def embedded_runtime_start_and_call(
    executable_file: str | os.PathLike[str],
    startup_inputs: Sequence[TensorLike] | Mapping[str, TensorLike],
    call_inputs: Sequence[TensorLike],
    name: str,
) -> tuple[list[tf.Tensor], RuntimeContext]:
    """Starts a program and calls it once: `embedded_runtime_start`, then `embedded_runtime_call`, with their errors.

    Args:
      executable_file: As for the start.
      startup_inputs: As `inputs` of the start.
      call_inputs: As `inputs` of the call.
      name: As for the start.

    Returns:
      The answer, and what to call the program by.
    """
    context = embedded_runtime_start(executable_file, startup_inputs, name)
    return embedded_runtime_call(call_inputs, context), context


def _in_a_row(queues: list[list[tf.TensorSpec]]) -> list[tf.TensorSpec]:
    """The tensors of the elements of all queues, by names of their own."""
    counts = collections.Counter(spec.name for specs in queues for spec in specs)
    return [
        tf.TensorSpec(spec.shape, spec.dtype, spec.name if counts[spec.name] == 1 else f"{at}.{spec.name}")
        for at, specs in enumerate(queues)
        for spec in specs
    ]


def _call(inputs: Sequence[Any], context: RuntimeContext, timeout_seconds: float | None) -> list[Any]:
    specs = context.signature().streamed_inputs
    values = _checked(list(inputs), specs, "Embedded application call expects", TypeError)
    future = context._engine.call([value.numpy() for value in values])
    try:
        return future.result(timeout_seconds)
    except concurrent.futures.TimeoutError:
        raise tf.errors.DeadlineExceededError(
            None, None, f"`{context.name()}` has not answered within {timeout_seconds} s"
        ) from None


def _listed(inputs: object, specs: list[tf.TensorSpec]) -> list[Any]:
    if isinstance(inputs, Mapping):
        missing = [spec.name for spec in specs if spec.name not in inputs]
        if missing:
            raise ValueError(
                f"Failed to find input tensors with the names {', '.join(f'`{name}`' for name in missing)} in `inputs`, which"
                f" has {', '.join(f'`{name}`' for name in inputs) or 'none'}"
            )
        return [inputs[spec.name] for spec in specs]
    if not isinstance(inputs, (list, tuple)):
        raise TypeError(f"Expected the inputs to be a list: `inputs` is {inputs!r}; give a list, or a dict by name")
    return list(inputs)


def _checked(
    values: list[Any], specs: list[tf.TensorSpec], expects: str, of_type: type[Exception] = ValueError
) -> list[tf.Tensor]:
    if len(values) != len(specs):
        names = ", ".join(f"`{spec.name}`" for spec in specs)
        raise ValueError(f"{expects} {len(specs)} inputs ({names}), but {len(values)} were provided")
    found = []
    for at, (value, spec) in enumerate(zip(values, specs, strict=True)):
        tensor = tf.convert_to_tensor(value)
        if not spec.shape.is_compatible_with(tensor.shape):
            raise ValueError(
                f"Mismatched input shape at position {at} (`{spec.name}`). Expected {spec.shape}, but input {at} has shape"
                f" {tensor.shape}"
            )
        if tensor.dtype != spec.dtype:
            raise of_type(
                f"Mismatched input dtype at position {at} (`{spec.name}`). Expected {spec.dtype.name}, but input {at} has"
                f" dtype {tensor.dtype.name}"
            )
        found.append(tensor)
    return found
