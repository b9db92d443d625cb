"""Outlined functions: a program that calls one several times contains its code once."""

from __future__ import annotations

import functools
import hashlib
import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._base.checks import Faults, note_bool
from tensorflow_ipu._native.library import ops
from tensorflow_ipu._tensorflow import functions, gradients, graphs
from tensorflow_ipu._tensorflow.autograph import user_code
from tensorflow_ipu.ops import gradient_capture

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Gradient, Nested, ShapeLike

__all__ = [
    "outlined_function",
]


# Each call is traced into two graphs. The forward pass also returns its residuals, which are the tensors that the
# backward pass needs:
#
#     call        inputs, captured --- IpuOutlined(f=forward) ---> outputs, residuals
#     gradient    gradients of outputs, residuals, inputs, captured --- IpuOutlined(f=backward) ---> gradients of inputs
#
# `digest` detects that the graphs of two calls are equal, whatever tensors they capture. Then both call the same
# functions. The gradient of a gradient needs more residuals. So it calls a second function of the forward graph that
# returns them too.

# These operations need only the shape of their operand, which may be static.
_SHAPE_OPERATIONS = ("Rank", "Shape", "ShapeN", "Size")


class GradientGraph(graphs.FunctionGraph):
    """The graph of a backward pass. It captures tensors of the forward pass, except constants, which it copies.

    XLA requires constants for shapes, permutations and the like, but captured tensors are arguments. So this graph
    copies the operations of each tensor that depends on constants and static shapes only.
    """

    def __init__(self, name: str, forward: graphs.FunctionGraph) -> None:
        super().__init__(name)
        self._forward = forward
        self._copies: dict[str, tf.Tensor] = {}

    def capture(self, tensor: tf.Tensor, name: str | None = None, shape: ShapeLike | None = None) -> tf.Tensor:
        if getattr(tensor, "graph", None) is self._forward and self._is_constant(tensor):
            return self._copy(tensor)
        return super().capture(tensor, name=name, shape=shape)

    def _is_constant(self, tensor: tf.Tensor) -> bool:
        """Returns True if an integer or boolean tensor depends on constants and static shapes only."""
        visited: set[str] = set()
        waiting = [tensor]
        while waiting:
            current = waiting.pop()
            if current.name in visited:
                continue
            visited.add(current.name)
            operation = current.op
            if operation.type == "Const" or _value_of_shape(current) is not None:
                continue
            if not (current.dtype.is_integer or current.dtype.is_bool) or not operation.inputs or _is_opaque(operation):
                return False
            waiting += operation.inputs
        return True

    def _copy(self, tensor: tf.Tensor) -> tf.Tensor:
        waiting = [tensor]
        while waiting:
            top = waiting[-1]
            missing = [source for source in top.op.inputs if source.name not in self._copies]
            value = _value_of_shape(top)
            if top.name in self._copies:
                waiting.pop()
            elif value is not None:
                with self.as_default(), tf.control_dependencies(None):
                    self._copies[top.name] = tf.constant(value, top.dtype)
            elif missing:
                waiting += missing
            else:
                with self.as_default(), tf.control_dependencies(None):
                    inputs = [self._copies[source.name] for source in top.op.inputs]
                    attributes = {key: value for key, value in top.op.node_def.attr.items() if key != "_class"}
                    copied = graphs.copy_operation(self, top.op, inputs, attributes)
                for old, new in zip(top.op.outputs, copied.outputs, strict=True):
                    self._copies[old.name] = new
        return self._copies[tensor.name]


def _value_of_shape(tensor: tf.Tensor) -> Any:
    """Returns the value of a tensor that is computed from a static shape; None for other tensors."""
    return tf.get_static_value(tensor) if tensor.op.type in _SHAPE_OPERATIONS else None


def _is_opaque(operation: tf.Operation) -> bool:
    """Returns True if an operation has side effects or calls functions."""
    attributes = operation.node_def.attr.values()
    return operation.op_def.is_stateful or any(
        attribute.HasField("func") or attribute.list.func for attribute in attributes
    )


# Attributes that a digest ignores: they have no effect on the results, and some of them differ in each trace.
_IGNORED = frozenset({"_gradient_op_type", "_class", "_output_shapes", "_num_original_outputs"})


def digest(graph: graphs.FunctionGraph, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor]) -> bytes:
    """Returns a digest of what a graph computes from its inputs to its outputs, and of its side effects."""
    hasher = hashlib.sha256()
    # Operations are numbered, since their names differ between graphs.
    names = {tensor.op.name: f"input {index}" for index, tensor in enumerate(inputs)}
    for operation in graph.get_operations():
        if operation.name not in names:
            names[operation.name] = str(len(names))
    for tensor in inputs:
        hasher.update(repr((tensor.dtype.name, tensor.shape)).encode())
    for operation in graph.get_operations():
        if names[operation.name].startswith("input"):
            continue
        operands = [(names[tensor.op.name], tensor.value_index) for tensor in operation.inputs]
        control_inputs = sorted(names[source.name] for source in operation.control_inputs if source.name in names)
        attributes = operation.node_def.attr
        described = [(name, _describe(graph, attributes[name])) for name in sorted(set(attributes) - _IGNORED)]
        hasher.update(repr((operation.type, operation.device, operands, control_inputs, described)).encode())
    hasher.update(repr([(names[tensor.op.name], tensor.value_index) for tensor in outputs]).encode())
    return hasher.digest()


def _describe(graph: graphs.FunctionGraph, value: Any) -> object:
    """Returns the value of an attribute, with the digests of functions in place of their names."""
    called = [value.func, *value.list.func] if value.HasField("func") or value.list.func else []
    if not called:
        return value.SerializeToString(deterministic=True)
    functions = [graphs.function_named(graph, reference.name) for reference in called]
    return [
        reference.name if function is None else digest(function.graph, function.graph.inputs, function.graph.outputs)
        for reference, function in zip(called, functions, strict=True)
    ]


_numbers = itertools.count()

# Two attributes of graphs. `_CALLED` has the functions that a graph calls. On a program's outermost graph, `_SHARED` has all
# functions of the program.
_CALLED, _SHARED = "_ipu_outlined", "_ipu_outlined_codes"
# The attribute of a graph with the captured gradients of each outlined call, by the name of the call's operation.
_CAPTURES = "_ipu_outlined_captures"


class _Code:
    """The code that calls share: a function of the runtime, and the function that computes its gradients."""

    def __init__(self, name: str, graph: graphs.FunctionGraph) -> None:
        self.graph = graph
        self.results: list[tf.Tensor] = []  # The outputs, then the residuals.
        self.output_count = len(graph.outputs)
        self.differentiated_outputs: list[int] = []  # Indices of the outputs whose gradients the backward pass takes.
        self.residuals: list[int] = []  # Operands of the backward pass: i for input i, -1 - i for result i.
        self.differentiated_inputs: list[int] = []  # Indices of the inputs whose gradients the backward pass returns.
        self.captures: list[gradient_capture.Capture] = []
        self.backward: _Code | None = None
        self.name = f"__ipu_outlined_{name}_{next(_numbers)}"
        self.function: Any = None

    def finish(self) -> None:
        """Creates the function from the graph, whose outputs are final now."""
        self.results = list(self.graph.outputs)
        self.function = functions.of_graph(self.name, self.graph, called=False)
        for name in [name for name, code in list(_codes.items()) if code() is None]:
            _codes.pop(name, None)
        _codes[self.name] = weakref.ref(self)


# Keys are the names of the functions. The graphs that call a function own it.
_codes: dict[str, weakref.ref[_Code]] = {}


def _call_outlined(function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Nested:
    """Calls a Python function as an outlined one, in the program that is being traced."""
    name = "".join(letter if letter.isalnum() else "_" for letter in name)
    flat = tf.nest.flatten((args, dict(kwargs)), expand_composites=True)
    positions = [index for index, leaf in enumerate(flat) if _is_value(leaf)]
    graph = graphs.FunctionGraph(name)
    body = user_code(function)

    def traced(*values: tf.Tensor) -> Nested:
        by_position = dict(zip(positions, values, strict=True))
        leaves = [by_position.get(index, leaf) for index, leaf in enumerate(flat)]
        arguments, options = tf.nest.pack_sequence_as((args, dict(kwargs)), leaves, expand_composites=True)
        returned = body(*arguments, **options)
        # Operations run in the order of the trace even if they are not returned.
        return tf.nest.map_structure(lambda leaf: None if isinstance(leaf, tf.Operation) else leaf, returned)

    values = [tf.convert_to_tensor(flat[index]) for index in positions]
    restore_tags = gradient_capture.remember_tags()
    graphs.trace_into(graph, traced, tuple(tf.TensorSpec(value.shape, value.dtype) for value in values))
    structure = graph.structured_outputs
    code = _Code(name, graph)
    if not _add_backward(code, name):
        restore_tags()
        return body(*args, **kwargs)
    captured = [outside for outside, _ in graph.captures]
    captures = code.captures
    code = _find_or_finish(code, len(values))
    for variable in graph.variables:
        if variable.trainable:
            gradients.note_use_of(variable)
    results = _emit(code, [*values, *captured])
    if captures:
        operation = results[0].op
        setattr(operation.graph, _CAPTURES, {**getattr(operation.graph, _CAPTURES, {}), operation.name: captures})
    remaining = iter(results[: code.output_count])
    return tf.nest.map_structure(
        lambda leaf: next(remaining) if isinstance(leaf, tf.Tensor) else leaf, structure, expand_composites=True
    )


def _is_value(leaf: object) -> bool:
    return isinstance(leaf, tf.Tensor) and leaf.dtype not in (tf.resource, tf.variant)


def _emit(code: _Code, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Adds a call of the function to the graph that is being built. Returns its results."""
    target = tf.compat.v1.get_default_graph()
    setattr(target, _CALLED, {*getattr(target, _CALLED, ()), code})
    graphs.hold_function(target, code.function)
    outputs = code.results
    results = ops.ipu_outlined(
        programs.with_states(inputs),
        output_types=[output.dtype for output in outputs],
        output_shapes=[output.shape for output in outputs],
        f=code.name,
    )
    operation = results if isinstance(results, tf.Operation) else results[0].op
    graphs.mark_read_only(operation, graphs.read_only_inputs(code.graph))
    return [] if isinstance(results, tf.Operation) else list(results)


def _add_backward(code: _Code, name: str) -> bool:
    """Traces the backward pass and adds its residuals to the results of the forward pass.

    The backward graph captures tensors of the forward graph. Each becomes an operand of the backward call: an input of
    the forward call is passed as such, and any other tensor becomes a result of the forward call. For `tf.exp(w * x)`,
    with the result `y`, the backward pass takes the gradient of `y`, and `y`, `w` and `x`.

    Returns False if the function cannot be outlined. The gradient of a loop needs tensors of type variant, which a call
    cannot return.
    """
    graph = code.graph
    code.differentiated_outputs = [index for index, tensor in enumerate(graph.outputs) if tensor.dtype.is_floating]
    xs = [
        index
        for index, tensor in enumerate(graph.inputs)
        if gradients.has_gradient(tensor) and not _is_native_state(graph, index)
    ]
    if not code.differentiated_outputs or not xs:
        return True
    ys = [graph.outputs[index] for index in code.differentiated_outputs]
    backward = GradientGraph(f"{name}_gradient", graph)

    def differentiate(*upstream: tf.Tensor) -> list[tf.Tensor]:
        input_gradients = gradients.between(ys, [graph.inputs[index] for index in xs], upstream, graph)
        code.differentiated_inputs = [x for x, tensor in zip(xs, input_gradients, strict=True) if tensor is not None]
        captured = [tensor for capture in code.captures for tensor in capture.gradients]
        return [*(tf.convert_to_tensor(tensor) for tensor in input_gradients if tensor is not None), *captured]

    # A graph accepts attributes, although it shows no `__dict__`.
    setattr(backward, gradient_capture.OUTLINED, code.captures)
    graphs.trace_into(backward, differentiate, tuple(tf.TensorSpec(y.shape, y.dtype) for y in ys))
    if not code.differentiated_inputs:
        return True
    results = list(graph.outputs)
    for outside, _ in backward.captures:
        # A tensor from outside that only the gradient uses becomes an input of the forward call.
        inside = outside if getattr(outside, "graph", None) is graph else graph.capture(outside)
        inputs = {id(tensor): index for index, tensor in enumerate(graph.inputs)}
        if id(inside) in inputs:
            code.residuals.append(inputs[id(inside)])
        elif inside.dtype == tf.variant:
            return False
        else:
            code.residuals.append(-1 - len(results))
            results.append(inside)
    graph.outputs = results
    code.backward = _Code(f"{name}_gradient", backward)
    return True


def _is_native_state(graph: graphs.FunctionGraph, index: int) -> bool:
    """Returns True if an input of `graph` is captured from the state variable of a native object."""
    return any(
        inside is graph.inputs[index] and programs.is_native_state(outside) for outside, inside in graph.captures
    )


def _find_or_finish(code: _Code, arguments: int) -> _Code:
    """Returns an equal function of the program if there is one. Otherwise finishes `code`, and returns it."""
    backward = code.backward
    key = (
        digest(code.graph, code.graph.inputs, code.graph.outputs),
        None if backward is None else digest(backward.graph, backward.graph.inputs, backward.graph.outputs),
        arguments,
        tuple(code.differentiated_outputs),
        tuple(code.residuals),
        tuple(code.differentiated_inputs),
    )
    *_, program = graphs.being_traced()
    shared: dict[Any, _Code] = getattr(program, _SHARED, {})
    setattr(program, _SHARED, shared)  # A graph accepts attributes, although it shows no `__dict__`.
    equal = shared.get(key)
    if equal is None:
        for unfinished in (code, backward):
            if unfinished is not None:
                unfinished.finish()
        equal = shared[key] = code
    return equal


@tf.RegisterGradient("IpuOutlined")
def _gradient(op: tf.Operation, *upstream: Gradient | None) -> list[tf.Tensor | None]:
    real = op.outputs[0].op  # A `tf.GradientTape` passes a mock operation.
    code = _codes[real.get_attr("f").name]()
    assert code is not None  # The graph of the call keeps it alive.
    inputs, outputs = list(real.inputs), list(real.outputs)
    differentiated = set(code.differentiated_outputs)
    if code.backward is None or any(
        index not in differentiated and _may_be_nonzero(gradient) for index, gradient in enumerate(upstream)
    ):
        code, captured = _with_all_gradients(code, len(inputs))
        inputs += captured
        outputs = _emit(code, inputs)
    input_gradients: list[tf.Tensor | None] = [None] * len(real.inputs)
    if code.backward is None:  # No output depends on a differentiable input.
        return input_gradients
    output_gradients = []
    for index in code.differentiated_outputs:
        gradient = upstream[index] if index < len(upstream) else None
        output_gradients.append(tf.zeros_like(outputs[index]) if gradient is None else tf.convert_to_tensor(gradient))
    residuals = [inputs[index] if index >= 0 else outputs[-1 - index] for index in code.residuals]
    results = iter(_emit(code.backward, [*output_gradients, *residuals]))
    for index in code.differentiated_inputs:
        gradient = next(results)
        if index < len(input_gradients):
            input_gradients[index] = gradient
    for capture in getattr(real.graph, _CAPTURES, {}).get(real.name, ()):
        captured_gradients = [next(results) for _ in capture.gradients]
        gradient_capture.Capture(capture.context, capture.tag, captured_gradients).note()
    return input_gradients


def _may_be_nonzero(upstream: Gradient | None) -> bool:
    """Returns False for None and for the zeros that TensorFlow passes as gradients of results that are not used."""
    if upstream is None or not upstream.dtype.is_floating:
        return False
    if not isinstance(upstream, tf.Tensor):
        return True
    if upstream.op.type == "ZerosLike":
        return False
    value = tf.get_static_value(upstream)
    return value is None or bool(np.any(value))


def _with_all_gradients(code: _Code, inputs: int) -> tuple[_Code, list[tf.Tensor]]:
    """Creates a function of the same graph whose backward pass takes the gradients of the residuals too.

    The gradient of a gradient needs it. Returns the function and its additional inputs: the tensors that it captures
    beyond the first `inputs` inputs.
    """
    code.graph.outputs = list(code.results)
    name = "again"
    second = _Code(name, code.graph)
    if not _add_backward(second, name):
        raise NotImplementedError(
            "an outlined function with a loop does not support gradients of its gradients; call the function without"
            " `outlined_function`"
        )
    captured = [outside for outside, _ in code.graph.captures]
    return _find_or_finish(second, inputs), captured[len(captured) - (len(code.graph.inputs) - inputs) :]


# The attributes that a decorated function copies. With `__module__`, AutoGraph would convert the decorated function as
# the user's code, and would fail to find the source of a lambda.
_COPIED_ATTRIBUTES = tuple(name for name in functools.WRAPPER_ASSIGNMENTS if name != "__module__")


def outlined_function(
    func: Callable[..., Any] | None = None,
    unique_sharding: bool = False,
    keep_input_layouts: bool | None = None,
    name: str | None = None,
) -> Callable[..., Any]:
    """Makes all calls of a Python function in a program share the code of its forward pass and of its backward pass.

        @outlined_function
        def block(x, weights):
            return tf.nn.relu(tf.matmul(x, weights))

    Each call traces the function. Calls share code if their traces differ only in their inputs: the arguments, and the
    variables and tensors that the function captures. Shapes and types must be equal. Gradients flow to all inputs, and
    are differentiable. Outside of programs, the Python function is called directly. So is a function with a loop
    through which gradients flow.

    Args:
      func: The function, from tensors and any other arguments to a structure of tensors. If it is None, the result is a
        decorator.
      unique_sharding: Whether the function runs on one shard only. Its type is checked, but it has no effect: it tunes
        hardware.
      keep_input_layouts: Whether the inputs of all calls must have one layout, or None. It has no effect either.
      name: A name for the function.

    Returns:
      The decorated function; or a decorator.

    Raises:
      TypeError: `func` is not callable, `unique_sharding` is not a bool, `keep_input_layouts` is neither a bool nor
        None, or `name` is not a string.
    """
    faults = Faults()
    note_bool("unique_sharding", unique_sharding, faults)
    note_bool("keep_input_layouts", keep_input_layouts, faults, optional=True)
    if func is not None and not callable(func):
        faults.add(TypeError, f"`func` must be a function, but is {func!r}")
    if name is not None and not isinstance(name, str):
        faults.add(TypeError, f"`name` must be a string, but is {name!r}")
    faults.raise_any()

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        function_name = name or getattr(function, "__name__", "outlined")

        @functools.wraps(function, assigned=_COPIED_ATTRIBUTES, updated=())
        def call(*args: Any, **kwargs: Any) -> Nested:
            if tf.executing_eagerly() or not programs.is_tracing():
                return user_code(function)(*args, **kwargs)
            return _call_outlined(function, function_name, args, kwargs)

        return call

    return decorated if func is None else decorated(func)
