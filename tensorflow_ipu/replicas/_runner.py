"""Runs a program on its device."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import _environment
from tensorflow_ipu._tensorflow import graphs
from tensorflow_ipu.config import DeviceConnectionType, _state
from tensorflow_ipu.errors import ForkedProcessError
from tensorflow_ipu.replicas import _checks, _compile, _numbers, _program, _runs, _uncompilable
from tensorflow_ipu.replicas._interrupts import run_interruptibly
from tensorflow_ipu.replicas._program import Prepared, Target
from tensorflow_ipu.replicas._run_log import RunLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorflow_ipu._tensorflow.functions import ConcreteFunction
    from tensorflow_ipu._types import Nested

_forked = False


def _note_fork() -> None:
    global _forked  # noqa: PLW0603
    _forked = True


os.register_at_fork(after_in_child=_note_fork)


def run(prepared: Prepared, device: str, ordinal: int) -> Nested:
    """Runs a program, and returns when it has ended. The caller has entered the device.

    Args:
      prepared: The program and its flat inputs.
      device: The full name of the IPU device, for messages and checks.
      ordinal: The device's number.

    Returns:
      What the program's function returns.

    Raises:
      ForkedProcessError: This process was forked after TensorFlow started.
      TypeError: An input or output is float64, or strings.
      ValueError: The program uses variables of another device.
      tf.errors.OpError: The program failed: its dataset ended, a queue was closed, and so on.
    """
    if _forked:
        raise ForkedProcessError(
            "this process was forked from one that had loaded TensorFlow, whose threads did not come along, so no program"
            " can run here. Start processes with `multiprocessing.get_context('spawn')`"
        )
    program, inputs = prepared
    _checks.check(program, inputs, device)
    connection = _state.connection_type(ordinal)
    if connection is DeviceConnectionType.ALWAYS or connection is DeviceConnectionType.ON_DEMAND:
        under_way = _runs.begin()
        log = RunLog(program.name, device)
        try:
            _runs.under_way.add(under_way)
            results = run_interruptibly(lambda: _program.call(program, inputs, ordinal))
        except BaseException as exc:
            log.fail(exc)
            raise
        finally:
            _runs.under_way.discard(under_way)
            under_way.release()
            log.end()
        return results
    if connection is DeviceConnectionType.PRE_COMPILE:
        _compile.compile_once(prepared)
        return tf.nest.map_structure(_zeros, program.structured_outputs)
    raise tf.errors.FailedPreconditionError(None, None, _never(device))


def insert(
    fn: Callable[..., Nested] | ConcreteFunction,
    args: Sequence[Nested],
    kwargs: Mapping[str, Nested],
    device: str,
    host_kernels: bool | None = None,
) -> Nested:
    """Puts `fn` as one compiled program into the graph that is being built.

    The caller has entered the device and the context in which `fn` is to be traced. What depends on the configured
    system, such as the number of replicas, and whether the device runs programs at all, is looked up as the graph runs:
    until then the system may be configured, or configured anew.

    Args:
      fn: A `tf.function`, a concrete function, or a callable.
      args: Its positional arguments.
      kwargs: Its keyword arguments.
      device: The full name of the IPU device.
      host_kernels: Whether kernels of the host may compute layers of the program. None: what the environment says.

    Returns:
      What `fn` returns, with tensors of the graph.

    Raises:
      TypeError: An input or output is float64, or strings.
      ValueError: The program uses variables of another device.
      tf.errors.InvalidArgumentError: XLA cannot compile the program.
    """
    if host_kernels is None:
        host_kernels = _environment.host_kernels()
    ordinal = tf.DeviceSpec.from_string(device).device_index or 0
    program, inputs = _program.trace(fn, args, kwargs, Target(None, host_kernels, _numbers.of_device(ordinal)))
    _checks.check(program, inputs, device)
    _place_variables([*inputs, *program.captured_inputs], device)
    _uncompilable.refuse(program)  # When it compiles, in a session, nobody could say which line is meant.
    return _program.call(program, inputs, ordinal)


def _place_variables(tensors: Sequence[tf.Tensor], device: str) -> None:
    """Puts variables that were made without a device, outside of any scope, where the program is.

    TensorFlow does so for what an operation uses, but not for what the function of a call uses: it stays on the host.
    """
    for tensor in tensors:
        # What a function captured of eager execution has a place, and no operation.
        made = tensor.dtype == tf.resource and tf.is_symbolic_tensor(tensor) and tensor.op.type == "VarHandleOp"
        if made and not tensor.device:
            graphs.place(tensor.op, device)


def insert_operation(fn: Callable[..., tf.Operation], args: Sequence[Nested], device: str) -> tf.Operation:
    """Puts what makes an operation into the graph as a program of its own; see `insert`.

    Returns:
      The operation that runs the program.
    """

    def program(*values: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([fn(*values)]):
            return tf.constant(0)  # For the session to fetch the program through.

    return insert(program, args, {}, device).op


def _never(device: str) -> str:
    return (
        f"`{device}` cannot run a program: its `device_connection.type` is `NEVER`, which compiles alone. Configure the"
        " system with `DeviceConnectionType.ALWAYS` to run"
    )


def _zeros(output: Any) -> Any:
    return tf.zeros(output.shape, output.dtype) if tf.is_tensor(output) else output


@_state.on_idle_wait
def _wait_until_idle() -> None:
    _runs.wait_until_idle()
