"""`compile`: has a function run as one program, in a graph for a session as in eager execution."""

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
    """Has `computation` run as one program on the IPU device on which its operations are placed.

        with ipu_scope("/device:IPU:0"):
            [loss] = compiler.compile(computation, [x])

    In a graph, the returned tensors are what a session runs; the system may be configured after the graph was built. In
    eager execution, the program runs at once. Variables that `computation` makes belong to the graph around, and their
    initial values are computed on the host. All operations with a side effect run, in the order in which they were made.
    Kernels of the host compute layers as the strategy around says, or else `TENSORFLOW_IPU_HOST_KERNELS`.

    Where no IPU device is named, there is no program. A graph of TensorFlow 1 refuses that, unless nothing is computed;
    eager execution and functions run the operations where they are.

    Args:
      computation: A function of tensors. It returns tensors, then operations that the program is to run; or one of
        them; or a nested structure of tensors; or None.
      inputs: Its arguments, each a tensor, what converts to one, or a nested structure of these; none if omitted.

    Returns:
      A list of tensors; the nested structure where the result is one. An operation where `computation` returns no
      tensor: None if eager.

    Raises:
      TypeError: `inputs` is no list, or `computation` cannot be called with these inputs.
      ValueError: The operations are placed on several IPU devices, or on none in a graph; or the result is something
        else.
    """
    arguments = _arguments(computation, inputs)
    results: list[_Results] = []

    def traced(*values: tf.Tensor) -> list[tf.Tensor]:
        known = {value.name: outside for value, outside in zip(values, flat, strict=True)}
        with _as_replica(), tf.variable_creator_scope(functools.partial(_make_outside, known)):
            results.append(_Results(computation(*tf.nest.pack_sequence_as(arguments, values))))
        return results[-1].fetched()

    flat = [tf.convert_to_tensor(value) for value in tf.nest.flatten(arguments)]
    around: str | None = devices.current()
    if tf.DeviceSpec.from_string(around).device_type != "IPU":
        around = None
    of_strategy = getattr(tf.distribute.get_strategy().extended, "host_kernels", None)
    host_kernels = environment.host_kernels() if of_strategy is None else of_strategy
    with programs.tracing_program(programs.Target.of_device(around, host_kernels), placed=around is not None):
        try:
            program = functions.traced_once(traced, flat, "ipu_program", {"_XlaMustCompile": True})
        except Exception as exc:
            raise tracebacks.shortened(exc)  # noqa: B904  (It is the same.)
    device = _device_inside(program) or around
    if device is None and programs.in_plain_graph() and results[-1].computes_something:
        raise ValueError(
            "`computation` was not placed on an IPU device, and would run on the host alone; call `compile` in"
            ' `with ipu_scope("/device:IPU:0"):`'
        )
    return results[-1].packed(_called(program, flat, device, host_kernels))


def _called(
    program: functions.ConcreteFunction, values: list[tf.Tensor], device: str | None, host_kernels: bool
) -> list[tf.Tensor]:
    """Runs the program on its device, or puts it into the graph; without a device, as a plain function."""
    if device is None:
        plain = functions.not_compiled(program)
        return functions.execute(plain, values, plain.captured_inputs)
    with tf.device(device):
        if not tf.executing_eagerly():
            return programs.insert(program, values, {}, device, host_kernels)
        target = programs.Target.of_device(device, host_kernels, ipus=1)
        return programs.Program.trace(program, values, {}, devices.full_name(device), target).run()


class _Results:
    """What a computation returned, and how it is handed on."""

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
        """The tensors that the program returns: at least one, since a session fetches through it."""
        with tf.control_dependencies(self._operations):
            return [tf.identity(tensor) for tensor in self._tensors] or [tf.constant(0)]

    def packed(self, values: list[tf.Tensor]) -> Nested:
        """What the user gets for the values of the fetched tensors."""
        if self._tensors:
            return list(values) if self._structure is None else tf.nest.pack_sequence_as(self._structure, values)
        return None if tf.executing_eagerly() else values[0].op


def _make_outside(
    known: Mapping[str, tf.Tensor], next_creator: Callable[..., tf.Variable], **kwargs: Any
) -> tf.Variable:
    """Makes a variable of the kind that programs can use, even where its initial value is a tensor of the program.

    `known` has the values of the program's arguments, by the names that they have in the program.
    """
    kwargs["use_resource"] = True
    value = kwargs.get("initial_value")
    if callable(value):
        kwargs["initial_value"] = functools.partial(_on_host, known, value)
    elif isinstance(value, tf.Tensor):
        lifted = functools.partial(_lifted, value, known)
        with tf.init_scope():
            kwargs["initial_value"] = tf.function(lifted, autograph=False)() if tf.executing_eagerly() else lifted()
    return next_creator(**kwargs)


def _on_host(known: Mapping[str, tf.Tensor], initial_value: Callable[..., object], *args: Any, **kwargs: Any) -> object:
    with programs.on_host():
        value = initial_value(*args, **kwargs)
    return _lifted(value, known) if isinstance(value, tf.Tensor) else value


def _lifted(value: tf.Tensor, known: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Returns a tensor of a program as one of the graph around the program, which is the current one."""
    around = tf.compat.v1.get_default_graph()
    if not tf.is_symbolic_tensor(value):
        return tf.identity(value)
    if value.graph is around or not graphs.is_function(value.graph):
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
            inputs[name] = _lifted(captured[name], known)
        elif operation.type == "Placeholder":
            if name not in known:
                raise ValueError(
                    f"the initial value `{value.name}` of a variable depends on `{operation.name}`, which changes from step"
                    " to step of a loop: compute it from constants, variables or the arguments of the program"
                )
            inputs[name] = _lifted(known[name], known)
        elif operation.name not in operations:
            operations[operation.name] = operation
            waiting += [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
    if value.name in inputs:
        return inputs[value.name]
    definition = tf.compat.v1.GraphDef(versions=graph.graph_def_versions)
    definition.node.extend(operation.node_def for operation in operations.values())
    for node in definition.node:
        node.attr.pop("_class", None)  # It may name an operation that stays in the program.
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
    except ValueError:  # A function of C, which says nothing about itself.
        pass
    return arguments


def _as_replica() -> contextlib.AbstractContextManager[None]:
    """The context of a replica where a strategy's scope is around, outside of which optimizers refuse to apply gradients."""
    current = tf.distribute.get_strategy().extended
    if tf.distribute.in_cross_replica_context() and isinstance(current, IPUExtended):
        return current.as_replica
    return contextlib.nullcontext()


def _device_inside(program: functions.ConcreteFunction) -> str | None:
    """The one IPU device that a program names for its operations; None if it names none."""
    operations = program.graph.get_operations()
    specs = [tf.DeviceSpec.from_string(operation.device) for operation in operations]
    devices = sorted({f"/device:IPU:{spec.device_index or 0}" for spec in specs if spec.device_type == "IPU"})
    if len(devices) > 1:
        raise ValueError(
            f"the operations of `computation` are placed on several devices, {', '.join(devices)}, and a program runs"
            " on one: compile a function for each"
        )
    return devices[0] if devices else None
