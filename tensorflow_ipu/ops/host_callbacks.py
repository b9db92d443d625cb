"""Parts of a program that the host runs: each is traced into a graph of its own, which the program calls."""

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

# What only a program can do.
_PROGRAMS_OWN = frozenset(
    {"IpuAllGather", "IpuAllReduce", "IpuAllToAll", "IpuBroadcast", "IpuInfeedDequeue", "IpuJoinOrders"}
    | {"IpuMicroBatches", "IpuOutfeedEnqueue", "IpuRandomSeed", "IpuRandomStream", "IpuReduceScatter"}
    | {"IpuReplicaIndex"}
)

_numbers = itertools.count()


class _Pending(threading.local):
    """Parts that this thread has traced, and that the host does not know yet."""

    def __init__(self) -> None:
        self.parts: list[weakref.ref[HostPart]] = []


_pending = _Pending()


class HostPart(graphs.FunctionGraph):
    """The graph of a part of a program that the host runs: a function inside of no other, which the program calls."""

    def __init__(self, name: str) -> None:
        """Makes the graph, in the program that is being traced."""
        self.program = tf.compat.v1.get_default_graph()
        self.call: Any = None
        self._device = sites.device_of_program(name)
        super().__init__(name)
        patches.CAPTURES.apply_while(self, _capturing)
        patches.PARTS_OF_HOST.apply_while(self, _define_pending)
        # Not even inside of the outermost graph, which bears the mark of the program.
        self._around = tf.Graph()
        graphs.share_python_functions(self._around, graphs.outermost_of(self))
        self.outer_graph = self._around
        with self.as_default():
            self.replica = tf.compat.v1.placeholder(tf.int32, [], "replica")
            self.replicas = tf.compat.v1.placeholder(tf.int32, [], "replicas")
        self._bound: list[tuple[tf.Tensor, tf.Tensor]] = []
        self._passed: list[tf.Tensor] = []  # Tensors of the program.
        self.passed_inside: list[tf.Tensor] = []  # What they are here.
        self._results: dict[int, tf.Tensor] = {}
        self._known = -1  # How many results the function has that the host knows.
        self._host_function: _HostFunction | None = None

    # What comes in.

    def capture(self, tensor: tf.Tensor, name: str | None = None, shape: ShapeLike | None = None) -> tf.Tensor:
        """Returns the tensor of this graph that stands for a tensor of elsewhere."""
        if getattr(tensor, "graph", self) is not self and tensor.dtype == tf.string:
            constant = tf.get_static_value(tensor)
            if constant is not None:
                with self.as_default(), tf.control_dependencies(None):
                    return tf.constant(constant)
        return super().capture(tensor, name, shape)

    def _create_op_internal(self, op_type: str, inputs: Iterable[tf.Tensor], *args: Any, **kwargs: Any) -> tf.Operation:
        if op_type in _PROGRAMS_OWN:
            raise ValueError(
                f"`{op_type}` is a program's own: take it out of the `outside_compilation_scope`, which the host runs."
                " Queues are used, replicas meet, and their random numbers are drawn in the program itself"
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
                    f"`{op_type}` uses a variable of the IPU, `{_name(external)}`, in an `outside_compilation_scope`. The"
                    " program alone can write it, and it is read at the beginning of a branch or loop of the scope:"
                    " compute what is to be written in the scope, and assign it after; read the variable before"
                )
            with self.program.as_default():
                value = tf.raw_ops.ReadVariableOp(resource=external, dtype=tf.as_dtype(_type_of(args, kwargs)))
            return self.capture(value).op
        return super()._create_op_internal(op_type, inputs, *args, **kwargs)

    def _variable_of_the_ipu(self, tensor: tf.Tensor) -> tf.Tensor | None:
        """Returns the variable whose handle a tensor is here; None for all else, and for variables of the host."""
        if tensor.dtype != tf.resource:
            return None
        external = next((outside for outside, inside in self.captures if inside is tensor), None)
        if external is None or not _is_variable(programs.source_of(external)):
            return None
        return None if _on_host(programs.source_of(external)) else external

    def _with_replica(self, text: tf.Tensor) -> tf.Tensor:
        """Adds the replica's index to each line of a text to print, if there are several replicas."""
        with self.as_default():
            which = tf.strings.join(["replica ", tf.strings.as_string(self.replica), ": "])
            prefix = tf.where(self.replicas > 1, which, "")
            rest = tf.raw_ops.RegexReplace(input=text, pattern="\n", rewrite=tf.strings.join(["\n", prefix]))
            return tf.strings.join([prefix, rest])

    # What the program does.

    def add_call(self, name: str) -> None:
        """Adds the call to the program."""
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
                    f"`{_name(external)}` of type {internal.dtype.name} is the program's, and an `outside_compilation_scope`"
                    " uses it: numbers alone cross its border. Make it inside of the scope, or outside of the program"
                )
            else:
                self._passed.append(external)
                self.passed_inside.append(internal)
        self.inputs = [self.replica, self.replicas, *(inside for _, inside in self._bound), *self.passed_inside]
        self._host_function = _HostFunction(self.name, self._device, [source for source, _ in self._bound])
        with self.program.as_default():
            state = programs.in_function(self._host_function.state(self._device))
            order = program_order.of(self._device)
            call = ops.ipu_host_call(state, self._passed, order, advance=not programs.in_condition(), name=name)
        self.call = call.op
        self._passed = list(self.call.inputs)[1 : 1 + len(self._passed)]
        # Lives as long as the program does. A graph takes attributes, though it shows no `__dict__`.
        self.program._ipu_parts = {**getattr(self.program, "_ipu_parts", {}), self.call.name: self}
        _pending.parts.append(weakref.ref(self))

    def result(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the program's tensor that stands for a tensor of the part."""
        known = self._results.get(id(tensor))
        if known is not None:
            return known
        if tensor.dtype in (tf.string, tf.resource, tf.variant):
            raise ValueError(
                f"`{tensor.name}` of type {tensor.dtype.name} is made in an `outside_compilation_scope`, and the program"
                " uses it: numbers alone cross its border. Turn it to numbers in the scope, or use it there alone"
            )
        if not tensor.shape.is_fully_defined():
            raise ValueError(
                f"`{tensor.name}` of shape {tensor.shape} is made in an `outside_compilation_scope`, and the program uses"
                " it, whose shapes are static: say in the scope which it has, by `tf.ensure_shape`"
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
                self.call.outputs[0], self._passed, index=index, dtype=tensor.dtype, shape=tensor.shape
            )
        self._results[id(tensor)] = result
        if self._known >= 0:  # A gradient, taken when the program was whole.
            self.define()
        return result

    def define(self) -> None:
        """Passes the traced function to the host."""
        if self._known == len(self.outputs):
            return
        assert self._host_function is not None
        self._known = len(self.outputs)
        name = (
            self._host_function.name
            if self._known == 0 or not self._host_function.defined
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
        self._made: list[tf.Operation] = []  # The operations that make the function in graphs.

    def _make_state(self, device: str, replica: int, replicas: int) -> tf.Tensor:
        if tf.executing_eagerly():
            return super()._make_state(device, replica, replicas)
        with tf.device(_HOST):  # Each session has a function of its own.
            initial = ops.ipu_host_function(tf.constant(0, tf.int64), self._bound, f=self.name, device=self._ordinal)
        self._made.append(initial.op)
        with tf.device(device):
            return ops.ipu_feed_state(initial)

    def define(self, function: Any) -> None:
        """Sets the host's function; one of more results replaces an earlier one."""
        with tf.init_scope():
            if tf.executing_eagerly():
                with tf.device(_HOST):
                    number = tf.constant(self.number, tf.int64)
                    ops.ipu_host_function(number, self._bound, f=function, device=self._ordinal)
            for operation in self._made:
                graphs.hold_function(operation.graph, function)
                named = tf.compat.v1.AttrValue(func=tf.compat.v1.NameAttrList(name=function.name))
                graphs.set_attribute(operation, "f", named)
        self.defined = True


class host_part:  # noqa: N801  (A context manager; a class, so that the frame around its end is the user's.)
    """A block of a program that the host runs; as a context manager, it gives the `HostPart`."""

    def __init__(self, name: str) -> None:
        """Prepares the block."""
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
    """Returns the part of a program that is being traced; None if none is."""
    if tf.executing_eagerly():
        return None
    return next((graph for graph in graphs.being_traced() if isinstance(graph, HostPart)), None)


@tf.RegisterGradient("IpuHostResult")
def _gradient(op: tf.Operation, gradient: Gradient | None) -> list[Gradient | None]:
    """Differentiates a part on the host too."""
    real = op.outputs[0].op  # A tape shows another one.
    part = getattr(real.graph, "_ipu_parts", {}).get(real.inputs[0].op.name)
    if part is None:
        raise LookupError(f"`{real.name}` is of a program that was traced elsewhere, and has no gradient here")
    with host_part("outside_gradient") if programs.is_tracing() else contextlib.nullcontext():
        of_numbers = [tensor for tensor in part.passed_inside if tensor.dtype.is_floating or tensor.dtype.is_complex]
        of_inputs = gradients.between([part.outputs[op.get_attr("index")]], of_numbers, [gradient], part)
        known = {
            id(tensor): None if of_tensor is None else _shaped(of_tensor, tensor)
            for tensor, of_tensor in zip(of_numbers, of_inputs, strict=True)
        }
    return [None, *(known.get(id(tensor)) for tensor in part.passed_inside)]


tf.no_gradient("IpuHostCall")


def _shaped(gradient: Gradient, tensor: tf.Tensor) -> Gradient:
    """Broadcasts a gradient to the shape of its tensor: of a `tf.py_function`, TensorFlow returns a single zero."""
    if isinstance(gradient, tf.Tensor) and gradient.op.type == "EagerPyFunc":
        return tf.broadcast_to(gradient, tf.shape(tensor))
    return gradient


def _is_variable(source: tf.Tensor) -> bool:
    """Returns True if a resource is a variable: of unknown kind, a program's argument can be nothing else."""
    if hasattr(source, "graph"):
        return source.op.type in ("VarHandleOp", "Placeholder")
    known = variables.type_behind(source)
    return known is not None and known.is_set and bool(known.shape_and_type)


def _on_host(source: tf.Tensor) -> bool:
    return tf.DeviceSpec.from_string(source.device or "").device_type == "CPU"


def _type_of(args: Iterable[object], kwargs: Mapping[str, Any]) -> int:
    """Returns the attribute `dtype` that an operation of TensorFlow is created with."""
    attributes = kwargs.get("attrs") or next(value for value in args if isinstance(value, dict))
    return attributes["dtype"].type


def _name(tensor: tf.Tensor) -> str:
    return tensor.name if hasattr(tensor, "graph") else "a resource"


def _define_pending(function: Any) -> None:
    """Defines the pending parts. Called with each function that TensorFlow has traced to its end."""
    del function
    parts, _pending.parts = _pending.parts, []
    for reference in parts:
        part = reference()
        if part is not None:
            part.define()


def _capturing(plain: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Replaces a tensor of a part, where the graph of its program uses it, by its result in the program."""

    def capture(
        self: graphs.FunctionGraph, tensor: tf.Tensor, name: str | None = None, shape: ShapeLike | None = None
    ) -> tf.Tensor:
        part = getattr(tensor, "graph", None)
        if isinstance(part, HostPart) and part is not self and part.call is not None:
            tensor = part.result(tensor)
        return plain(self, tensor, name, shape)

    return capture
