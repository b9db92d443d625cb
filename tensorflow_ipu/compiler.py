"""`compile`, which runs a function as one program, eagerly or in a graph for a session."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._base import environment
from tensorflow_ipu._tensorflow import devices, functions, graphs
from tensorflow_ipu.ops import random_streams
from tensorflow_ipu.programs.diagnostics import tracebacks
from tensorflow_ipu.strategy.extended import IPUExtended

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested

__all__ = ["compile"]


def compile(computation: Callable[..., Nested], inputs: Sequence[Nested] | None = None) -> Nested:  # noqa: A001
    """Runs `computation` as one program on the IPU device of its operations.

        with ipu_scope("/device:IPU:0"):
            [loss] = compiler.compile(computation, [x])

    In eager execution, the program runs immediately. In a graph, a session runs it by the returned tensors; the system may be
    configured after the graph is built. Variables that `computation` creates belong to the surrounding graph, and the host
    computes their initial values. All operations with a side effect run, in the order of their creation. The surrounding
    strategy, or else `TENSORFLOW_IPU_HOST_KERNELS`, determines whether host kernels compute layers.

    If no operation is on an IPU device, there is no program. In eager execution and in functions, the operations then run
    on their own devices. In a graph of TensorFlow 1, this is an error, unless nothing is computed.

    Args:
      computation: A function of tensors. It returns tensors, followed by operations that the program runs; or a single
        tensor or operation; or a nested structure of tensors; or None.
      inputs: The arguments of `computation`; None for no arguments. Each is a tensor, a value that converts to a tensor, or
        a nested structure of these.

    Returns:
      A list of tensors, or the nested structure that `computation` returns. If it returns no tensor: an operation in a
      graph, None in eager execution.

    Raises:
      TypeError: `inputs` is not a list, or `computation` does not accept these inputs.
      ValueError: The operations are placed on several IPU devices, or on none in a graph; or `computation` returns
        something else.
    """
    arguments = _arguments(computation, inputs)
    results: list[_Results] = []

    def traced(*values: tf.Tensor) -> list[tf.Tensor]:
        outside_values = {value.name: outside for value, outside in zip(values, outside_inputs, strict=True)}
        with _as_replica(), tf.variable_creator_scope(functools.partial(_create_outside, outside_values)):
            results.append(_Results(computation(*tf.nest.pack_sequence_as(arguments, values))))
        return results[-1].fetched()

    outside_inputs = [tf.convert_to_tensor(value) for value in tf.nest.flatten(arguments)]
    device_around: str | None = devices.current()
    if tf.DeviceSpec.from_string(device_around).device_type != "IPU":
        device_around = None
    strategy_setting = getattr(tf.distribute.get_strategy().extended, "host_kernels", None)
    host_kernels = environment.host_kernels() if strategy_setting is None else strategy_setting
    with programs.tracing_program(
        programs.Target.of_device(device_around, host_kernels), placed=device_around is not None
    ):
        try:
            program = functions.traced_once(traced, outside_inputs, "ipu_program", {"_XlaMustCompile": True})
        except Exception as exc:
            raise tracebacks.shortened(exc)  # noqa: B904  (It is the same error.)
    device = _device_inside(program) or device_around
    if device is None and programs.in_plain_graph() and results[-1].computes_something:
        raise ValueError(
            "`computation` was not placed on an IPU device, and would run on the host alone; call `compile` in"
            ' `with ipu_scope("/device:IPU:0"):`'
        )
    return results[-1].packed(_call_program(program, outside_inputs, device, host_kernels))


def _call_program(
    program: functions.ConcreteFunction, values: list[tf.Tensor], device: str | None, host_kernels: bool
) -> list[tf.Tensor]:
    """Runs the program on its device, or inserts it into the graph. Without a device, runs it as a plain function."""
    if device is None:
        uncompiled = functions.not_compiled(program)
        return functions.execute(uncompiled, values, uncompiled.captured_inputs)
    with tf.device(device):
        if not tf.executing_eagerly():
            return programs.insert(program, values, {}, device, host_kernels)
        target = programs.Target.of_device(device, host_kernels, ipus=1)
        return programs.Program.trace(program, values, {}, devices.full_name(device), target).run()


class _Results:
    """The values that a computation returned. They determine what the program returns, and what the user gets."""

    def __init__(self, returned: Nested) -> None:
        if returned is None:
            returned = []
        is_list = isinstance(returned, (list, tuple))
        self._structure: Nested = None
        if tf.nest.is_nested(returned) and not (is_list and not any(map(tf.nest.is_nested, returned))):
            self._structure = returned
        flat = tf.nest.flatten(returned)
        self._operations = [value for value in flat if isinstance(value, tf.Operation)]
        if self._operations and self._structure is not None:
            raise ValueError(
                "`computation` must not return operations within a nested structure: return a flat list, tensors first"
            )
        tensors = flat[: len(flat) - len(self._operations)]
        if any(isinstance(value, tf.Operation) for value in tensors):
            raise ValueError(
                "`computation` must return zero or more tensors followed by zero or more operations, but returned"
                f" {flat}"
            )
        self._tensors = [tf.convert_to_tensor(value) for value in tensors]
        operations = tf.compat.v1.get_default_graph().get_operations()
        self.computes_something = any(operation.type != "NoOp" for operation in operations)

    def fetched(self) -> list[tf.Tensor]:
        """Returns the tensors that the program returns: at least one, which a session can fetch to run the program."""
        with tf.control_dependencies(self._operations):
            return [tf.identity(tensor) for tensor in self._tensors] or [tf.constant(0)]

    def packed(self, values: list[tf.Tensor]) -> Nested:
        """Packs the values of the fetched tensors into the structure that the computation returned."""
        if self._tensors:
            return list(values) if self._structure is None else tf.nest.pack_sequence_as(self._structure, values)
        return None if tf.executing_eagerly() else values[0].op


def _create_outside(
    outside_values: Mapping[str, tf.Tensor], next_creator: Callable[..., tf.Variable], **kwargs: Any
) -> tf.Variable:
    """Creates a variable of a program outside of the program, even if its initial value is computed in the program.

    `outside_values` maps the names of the program's arguments, within the program, to their values outside.
    """
    kwargs["use_resource"] = True
    value = kwargs.get("initial_value")
    if callable(value):
        kwargs["initial_value"] = functools.partial(_on_host, outside_values, value)
    elif isinstance(value, tf.Tensor):
        lifted = functools.partial(_lifted, value, outside_values)
        with tf.init_scope():
            kwargs["initial_value"] = tf.function(lifted, autograph=False)() if tf.executing_eagerly() else lifted()
    return next_creator(**kwargs)


def _on_host(
    outside_values: Mapping[str, tf.Tensor], initial_value: Callable[..., object], *args: Any, **kwargs: Any
) -> object:
    with programs.on_host():
        value = initial_value(*args, **kwargs)
    return _lifted(value, outside_values) if isinstance(value, tf.Tensor) else value


def _lifted(value: tf.Tensor, outside_values: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Copies the operations that compute `value` from the graph of the program into the current graph around it.

    The copy reads the values outside of the program: `outside_values` for its arguments, and the captured tensors. These
    may be tensors of a graph further out, and are lifted in turn. Example: `computation(x)` creates `tf.Variable(2 * x)`;
    the copy multiplies the argument that the caller passed for `x`. An input that exists only in a loop is an error.
    """
    current_graph = tf.compat.v1.get_default_graph()
    if not tf.is_symbolic_tensor(value):
        return tf.identity(value)
    if value.graph is current_graph or not graphs.is_function(value.graph):
        return value
    value = random_streams.on_host(value)
    graph = cast("graphs.FunctionGraph", value.graph)
    captured = {inside.name: outside for outside, inside in graph.captures}
    inputs = dict[str, tf.Tensor]()
    operations = dict[str, tf.Operation]()
    waiting = [value.op]
    while waiting:
        operation = waiting.pop()
        name = f"{operation.name}:0"
        if name in captured:
            inputs[name] = _lifted(captured[name], outside_values)
        elif operation.type == "Placeholder":
            if name not in outside_values:
                raise ValueError(
                    f"the initial value `{value.name}` of a variable depends on `{operation.name}`, which changes from step"
                    " to step of a loop: compute it from constants, variables or the arguments of the program"
                )
            inputs[name] = _lifted(outside_values[name], outside_values)
        elif operation.name not in operations:
            operations[operation.name] = operation
            waiting += [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
    if value.name in inputs:
        return inputs[value.name]
    definition = tf.compat.v1.GraphDef(versions=graph.graph_def_versions)
    definition.node.extend(operation.node_def for operation in operations.values())
    for node in definition.node:
        node.attr.pop("_class", None)  # The attribute may name an operation that is not copied.
    if any(attribute.HasField("func") for node in definition.node for attribute in node.attr.values()):
        definition.library.CopyFrom(graph.as_graph_def().library)
    return tf.graph_util.import_graph_def(definition, inputs, [value.name], name="initial_value")[0]


def _arguments(computation: Callable[..., Nested], inputs: Nested) -> list[Nested]:
    if inputs is not None and not isinstance(inputs, (list, tuple)):
        raise TypeError(f"`inputs` must be a list of the computation's arguments, but is {inputs!r}")
    if not callable(computation):
        raise TypeError(f"`computation` must be a function, but is {computation!r}")
    arguments = list(inputs or ())
    try:
        inspect.signature(computation).bind(*arguments)
    except TypeError as exc:
        raise TypeError(
            f"`computation` cannot be called with the {len(arguments)} values of `inputs`: its arguments are"
            f" `{inspect.signature(computation)}`"
        ) from exc
    except ValueError:  # Functions written in C may have no signature.
        pass
    return arguments


def _as_replica() -> contextlib.AbstractContextManager[None]:
    """Returns the replica context of the current strategy, without which optimizers refuse to apply gradients."""
    current = tf.distribute.get_strategy().extended
    if tf.distribute.in_cross_replica_context() and isinstance(current, IPUExtended):
        return current.as_replica
    return contextlib.nullcontext()


def _device_inside(program: functions.ConcreteFunction) -> str | None:
    """Returns the only IPU device that the program's operations name; None if they name none."""
    operations = program.graph.get_operations()
    specs = [tf.DeviceSpec.from_string(operation.device) for operation in operations]
    devices = sorted({f"/device:IPU:{spec.device_index or 0}" for spec in specs if spec.device_type == "IPU"})
    if len(devices) > 1:
        raise ValueError(
            f"the operations of `computation` are placed on several devices, {', '.join(devices)}, and a program runs"
            " on one: compile a function for each"
        )
    return devices[0] if devices else None
