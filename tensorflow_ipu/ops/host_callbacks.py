"""Parts of a program that the host runs: each is traced into a separate graph, which the program calls."""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._native.library import native, ops
from tensorflow_ipu._tensorflow import functions, gradients, graphs, patches, variables
from tensorflow_ipu.feeds import program_order
from tensorflow_ipu.feeds._native_object import NativeObject
from tensorflow_ipu.ops import sites

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tensorflow_ipu._base.types import Gradient, ShapeLike

_HOST = "/device:CPU:0"

# Operations that the host cannot run for a program.
_PROGRAM_ONLY = frozenset(
    {"IpuAllGather", "IpuAllReduce", "IpuAllToAll", "IpuBroadcast", "IpuInfeedDequeue", "IpuJoinOrders"}
    | {"IpuMicroBatches", "IpuOutfeedEnqueue", "IpuRandomSeed", "IpuRandomStream", "IpuReduceScatter"}
    | {"IpuReplicaIndex"}
)

_numbers = itertools.count()


class _Pending(threading.local):
    """The parts that this thread has traced, and whose functions it has not passed to the host yet."""

    def __init__(self) -> None:
        self.parts: list[weakref.ref[HostPart]] = []


_pending = _Pending()


class HostPart(graphs.FunctionGraph):
    """The graph of a part of a program that the host runs.

    The program calls it by the operation `IpuHostCall`, with the tensors that the part uses, its arguments. Resources
    of the host, and tensors from outside of the program, are bound to the function once. A tensor of the part that the
    program uses becomes a result: `capture` of the program's graph adds the operation `IpuHostResult`, which reads it.

    The results are known when the trace of the program ends. Then `define` passes the function to the host. The
    gradient of the program may add results later, and `define` passes a function with more results.
    """

    def __init__(self, name: str) -> None:
        self.program = tf.compat.v1.get_default_graph()
        self.call: Any = None
        self._device = sites.device_of_program(name)
        super().__init__(name)
        patches.CAPTURES.apply_while(self, _capturing)
        patches.PARTS_OF_HOST.apply_while(self, _define_pending)
        # Its own outer graph. Inside a graph of the program, the part would belong to the program's trace context.
        self._outermost = tf.Graph()
        graphs.share_python_functions(self._outermost, graphs.outermost_of(self))
        self.outer_graph = self._outermost
        with self.as_default():
            self.replica = tf.compat.v1.placeholder(tf.int32, [], "replica")
            self.replicas = tf.compat.v1.placeholder(tf.int32, [], "replicas")
        self._bound: list[tuple[tf.Tensor, tf.Tensor]] = []
        self._arguments: list[tf.Tensor] = []  # Tensors of the program.
        self.parameters: list[tf.Tensor] = []  # The tensors of this graph for the arguments.
        self._results: dict[int, tf.Tensor] = {}
        self._defined_results = -1  # The number of results of the function that the host has; -1 before it has one.
        self._host_function: _HostFunction | None = None

    # Tensors from outside of the part.

    def capture(self, tensor: tf.Tensor, name: str | None = None, shape: ShapeLike | None = None) -> tf.Tensor:
        """Returns the tensor of this graph for a tensor of another graph; copies constant strings."""
        if getattr(tensor, "graph", self) is not self and tensor.dtype == tf.string:
            constant = tf.get_static_value(tensor)
            if constant is not None:
                with self.as_default(), tf.control_dependencies(None):
                    return tf.constant(constant)
        return super().capture(tensor, name, shape)

    def _create_op_internal(self, op_type: str, inputs: Iterable[tf.Tensor], *args: Any, **kwargs: Any) -> tf.Operation:
        if op_type in _PROGRAM_ONLY:
            raise ValueError(
                f"`{op_type}` is not supported in an `outside_compilation_scope`, which the host runs: only the program"
                " can use queues, collectives and the random streams of replicas. Move it out of the scope"
            )
        inputs = list(inputs)
        if op_type == "PrintV2":
            inputs[0] = self._with_replica(inputs[0])
        for tensor in inputs:
            external = self._variable_of_the_ipu(tensor)
            if external is None:
                continue
            if op_type != "ReadVariableOp":
                raise ValueError(
                    f"`{op_type}` uses a variable of the IPU, `{_name(external)}`, in an `outside_compilation_scope`."
                    " The scope can only read it, and not in a branch or loop: read it before the branch or loop, and"
                    " assign new values after the scope"
                )
            with self.program.as_default():
                value = tf.raw_ops.ReadVariableOp(resource=external, dtype=tf.as_dtype(_type_of(args, kwargs)))
            return self.capture(value).op
        return super()._create_op_internal(op_type, inputs, *args, **kwargs)

    def _variable_of_the_ipu(self, tensor: tf.Tensor) -> tf.Tensor | None:
        """Returns the outer tensor of the captured `tensor` if it is the handle of a variable of the IPU, else None."""
        if tensor.dtype != tf.resource:
            return None
        external = next((outside for outside, inside in self.captures if inside is tensor), None)
        if external is None or not _is_variable(programs.source_of(external)):
            return None
        return None if _on_host(programs.source_of(external)) else external

    def _with_replica(self, text: tf.Tensor) -> tf.Tensor:
        """Adds the replica's index to each line of a text to print, if there are several replicas."""
        with self.as_default():
            label = tf.strings.join(["replica ", tf.strings.as_string(self.replica), ": "])
            prefix = tf.where(self.replicas > 1, label, "")
            lines = tf.raw_ops.RegexReplace(input=text, pattern="\n", rewrite=tf.strings.join(["\n", prefix]))
            return tf.strings.join([prefix, lines])

    # Operations of the program.

    def add_call(self, name: str) -> None:
        """Adds the call of this part to the program, when the part has been traced."""
        for external, internal in self.captures:
            if internal.dtype == tf.resource and not internal.consumers():
                continue
            source = programs.source_of(external)
            if not hasattr(source, "graph") or (
                internal.dtype == tf.resource and not isinstance(source.graph, graphs.FunctionGraph)
            ):
                self._bound.append((source, internal))
            elif internal.dtype in (tf.string, tf.resource, tf.variant):
                raise ValueError(
                    f"`{_name(external)}` of type {internal.dtype.name} belongs to the program, and an"
                    " `outside_compilation_scope` uses it: only numbers and booleans can enter or leave the scope."
                    " Create it in the scope, or outside of the program"
                )
            else:
                self._arguments.append(external)
                self.parameters.append(internal)
        self.inputs = [self.replica, self.replicas, *(inside for _, inside in self._bound), *self.parameters]
        self._host_function = _HostFunction(self.name, self._device, [source for source, _ in self._bound])
        with self.program.as_default():
            state = programs.in_function(self._host_function.state(self._device))
            order = program_order.of(self._device)
            call = ops.ipu_host_call(state, self._arguments, order, advance=not programs.in_condition(), name=name)
        self.call = call.op
        self._arguments = list(self.call.inputs)[1 : 1 + len(self._arguments)]
        # The program's graph owns the part. A graph accepts attributes, although it shows no `__dict__`.
        self.program._ipu_parts = {**getattr(self.program, "_ipu_parts", {}), self.call.name: self}
        _pending.parts.append(weakref.ref(self))

    def result(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the tensor of the program that reads a tensor of the part."""
        result = self._results.get(id(tensor))
        if result is not None:
            return result
        if tensor.dtype in (tf.string, tf.resource, tf.variant):
            raise ValueError(
                f"`{tensor.name}` of type {tensor.dtype.name} is created in an `outside_compilation_scope`, and the"
                " program uses it: only numbers and booleans can enter or leave the scope. Convert it to numbers in the"
                " scope, or use it only there"
            )
        if not tensor.shape.is_fully_defined():
            raise ValueError(
                f"`{tensor.name}` of shape {tensor.shape} is created in an `outside_compilation_scope`, and the program"
                " uses it: results of a scope must have a static shape. Use `tf.ensure_shape` in the scope"
            )
        index = len(self.outputs)
        self.outputs.append(tensor)
        attributes = tf.compat.v1.AttrValue
        types = attributes.ListValue(type=[output.dtype.as_datatype_enum for output in self.outputs])
        shapes = attributes.ListValue(shape=[output.shape.as_proto() for output in self.outputs])
        graphs.set_attribute(self.call, "result_types", attributes(list=types))
        graphs.set_attribute(self.call, "result_shapes", attributes(list=shapes))
        with self.program.as_default(), self.program.control_dependencies(None):
            result = ops.ipu_host_result(
                self.call.outputs[0], self._arguments, index=index, dtype=tensor.dtype, shape=tensor.shape
            )
        self._results[id(tensor)] = result
        if self._defined_results >= 0:  # The trace has ended, and a gradient uses the tensor.
            self.define()
        return result

    def define(self) -> None:
        """Passes the function to the host, unless the host has it with the same results."""
        if self._defined_results == len(self.outputs):
            return
        assert self._host_function is not None
        self._defined_results = len(self.outputs)
        name = (
            self._host_function.name
            if self._defined_results == 0 or not self._host_function.defined
            else f"{self._host_function.name}_{next(_numbers)}"
        )
        self._host_function.define(functions.of_graph(name, self, called=False))


class _HostFunction(NativeObject):
    """The function of the host that computes a part."""

    def __init__(self, name: str, device: str, bound: list[tf.Tensor]) -> None:
        self._ordinal = tf.DeviceSpec.from_string(device).device_index
        super().__init__(native.ipu_host_function_new(self._ordinal), native.ipu_host_function_drop)
        self.name = "_".join(["ipu", re.sub(r"\W", "_", name), str(next(_numbers))])
        self.defined = False
        self._bound = bound
        self._operations: list[tf.Operation] = []  # The operations of graphs that create the function.

    def _make_state(self, device: str, replica: int, replicas: int) -> tf.Tensor:
        if tf.executing_eagerly():
            return super()._make_state(device, replica, replicas)
        with tf.device(_HOST):  # Each session creates its function.
            initial = ops.ipu_host_function(tf.constant(0, tf.int64), self._bound, f=self.name, device=self._ordinal)
        self._operations.append(initial.op)
        with tf.device(device):
            return ops.ipu_feed_state(initial)

    def define(self, function: Any) -> None:
        """Registers the function with the host. A function with more results replaces an earlier one."""
        with tf.init_scope():
            if tf.executing_eagerly():
                with tf.device(_HOST):
                    number = tf.constant(self.number, tf.int64)
                    ops.ipu_host_function(number, self._bound, f=function, device=self._ordinal)
            for operation in self._operations:
                graphs.hold_function(operation.graph, function)
                named = tf.compat.v1.AttrValue(func=tf.compat.v1.NameAttrList(name=function.name))
                graphs.set_attribute(operation, "f", named)
        self.defined = True


class host_part:  # noqa: N801  (A context manager. It is a class, so that the user's frame calls `__exit__`.)
    """A context manager that traces its block into a `HostPart`, which it returns."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> HostPart:
        self._part = HostPart(self._name)
        self._stack.enter_context(self._part.as_default())
        self._order = self._stack.enter_context(graphs.in_order_of_side_effects())
        return self._part

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, traceback)
        if error is None:
            self._part.control_outputs.extend(self._order.ops_which_must_run)
            self._part.add_call(self._name)


def around() -> HostPart | None:
    """Returns the `HostPart` that is being traced; None if there is none."""
    if tf.executing_eagerly():
        return None
    return next((graph for graph in graphs.being_traced() if isinstance(graph, HostPart)), None)


@tf.RegisterGradient("IpuHostResult")
def _gradient(op: tf.Operation, gradient: Gradient | None) -> list[Gradient | None]:
    """Adds the gradient of a part, which is another part that the host runs."""
    real = op.outputs[0].op  # A `tf.GradientTape` passes a mock operation.
    part = getattr(real.graph, "_ipu_parts", {}).get(real.inputs[0].op.name)
    if part is None:
        raise LookupError(f"`{real.name}` has no gradient here: its program was traced in another graph")
    with host_part("outside_gradient") if programs.is_tracing() else contextlib.nullcontext():
        sources = [tensor for tensor in part.parameters if tensor.dtype.is_floating or tensor.dtype.is_complex]
        input_gradients = gradients.between([part.outputs[op.get_attr("index")]], sources, [gradient], part)
        gradient_of = {
            id(tensor): None if input_gradient is None else _broadcast(input_gradient, tensor)
            for tensor, input_gradient in zip(sources, input_gradients, strict=True)
        }
    return [None, *(gradient_of.get(id(tensor)) for tensor in part.parameters)]


tf.no_gradient("IpuHostCall")


def _broadcast(gradient: Gradient, tensor: tf.Tensor) -> Gradient:
    """Broadcasts the gradient of a `tf.py_function`, which may be a scalar zero, to the shape of its tensor."""
    if isinstance(gradient, tf.Tensor) and gradient.op.type == "EagerPyFunc":
        return tf.broadcast_to(gradient, tf.shape(tensor))
    return gradient


def _is_variable(source: tf.Tensor) -> bool:
    """Returns True if a resource is a variable. A placeholder always is: programs accept no other resources."""
    if hasattr(source, "graph"):
        return source.op.type in ("VarHandleOp", "Placeholder")
    resource_type = variables.handle_data(source)
    return resource_type is not None and resource_type.is_set and bool(resource_type.shape_and_type)


def _on_host(source: tf.Tensor) -> bool:
    return tf.DeviceSpec.from_string(source.device or "").device_type == "CPU"


def _type_of(args: Iterable[object], kwargs: Mapping[str, Any]) -> int:
    """Returns the attribute `dtype` in the arguments of `_create_op_internal`."""
    attributes = kwargs.get("attrs") or next(value for value in args if isinstance(value, dict))
    return attributes["dtype"].type


def _name(tensor: tf.Tensor) -> str:
    return tensor.name if hasattr(tensor, "graph") else "a resource"


def _define_pending(function: Any) -> None:
    """Defines the pending parts. The hook `PARTS_OF_HOST` calls it with each function whose trace has ended."""
    del function
    parts, _pending.parts = _pending.parts, []
    for reference in parts:
        part = reference()
        if part is not None:
            part.define()


def _capturing(original: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Returns the replacement of `capture`, by which a program reads a tensor of a part as a result."""

    def capture(
        self: graphs.FunctionGraph, tensor: tf.Tensor, name: str | None = None, shape: ShapeLike | None = None
    ) -> tf.Tensor:
        part = getattr(tensor, "graph", None)
        if isinstance(part, HostPart) and part is not self and part.call is not None:
            tensor = part.result(tensor)
        return original(self, tensor, name, shape)

    return capture
