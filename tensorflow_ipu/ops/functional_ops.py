"""Functions that are in a program once, however often it calls them."""

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


# Each call is traced. The graph of the forward pass is made to return what the backward pass needs of it, its residuals,
# and the graph of the backward pass takes those:
#
#     call        inputs, captured --- IpuOutlined(f=forward) ---> outputs, residuals
#     gradient    gradients of outputs, residuals, inputs, captured --- IpuOutlined(f=backward) ---> gradients of inputs
#
# Where a call's graphs are those of an earlier one but for what they capture, it calls the functions of that one. Where
# the gradient of a gradient needs more residuals, a function of the same graph that returns them is called once more.

# Of static shapes: what they are of need not be there.
_OF_SHAPES = ("Rank", "Shape", "ShapeN", "Size")


class GradientGraph(graphs.FunctionGraph):
    """A graph whose operations use tensors of the forward pass; what shapes and constants alone make has a copy here."""

    def __init__(self, name: str, forward: graphs.FunctionGraph) -> None:
        super().__init__(name)
        self._forward = forward
        self._copies: dict[str, tf.Tensor] = {}

    def capture(self, tensor: tf.Tensor, name: str | None = None, shape: ShapeLike | None = None) -> tf.Tensor:
        if getattr(tensor, "graph", None) is self._forward and self._is_known(tensor):
            return self._copy(tensor)
        return super().capture(tensor, name=name, shape=shape)

    def _is_known(self, tensor: tf.Tensor) -> bool:
        """Returns True if an integer or boolean tensor depends on constants and static shapes only."""
        seen: set[str] = set()
        waiting = [tensor]
        while waiting:
            current = waiting.pop()
            if current.name in seen:
                continue
            seen.add(current.name)
            operation = current.op
            if operation.type == "Const" or _value_of_shape(current) is not None:
                continue
            if not (current.dtype.is_integer or current.dtype.is_bool) or not operation.inputs or _does_more(operation):
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
    """Returns the value of a static shape; None for other tensors."""
    return tf.get_static_value(tensor) if tensor.op.type in _OF_SHAPES else None


def _does_more(operation: tf.Operation) -> bool:
    """Returns True if an operation has side effects, or calls functions."""
    attributes = operation.node_def.attr.values()
    return operation.op_def.is_stateful or any(
        attribute.HasField("func") or attribute.list.func for attribute in attributes
    )


# Of no bearing on what is computed: gradients are made already, and these are other ones in each trace.
_IGNORED = frozenset({"_gradient_op_type", "_class", "_output_shapes", "_num_original_outputs"})


def digest(graph: graphs.FunctionGraph, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor]) -> bytes:
    """Computes a digest of a graph's computation from its inputs to its outputs, and of its side effects."""
    hasher = hashlib.sha256()
    # By number: names count on from graph to graph.
    names = {tensor.op.name: f"input {at}" for at, tensor in enumerate(inputs)}
    for operation in graph.get_operations():
        if operation.name not in names:
            names[operation.name] = str(len(names))
    for tensor in inputs:
        hasher.update(repr((tensor.dtype.name, tensor.shape)).encode())
    for operation in graph.get_operations():
        if names[operation.name].startswith("input"):
            continue
        takes = [(names[tensor.op.name], tensor.value_index) for tensor in operation.inputs]
        after = sorted(names[before.name] for before in operation.control_inputs if before.name in names)
        attributes = operation.node_def.attr
        described = [(name, _described(graph, attributes[name])) for name in sorted(set(attributes) - _IGNORED)]
        hasher.update(repr((operation.type, operation.device, takes, after, described)).encode())
    hasher.update(repr([(names[tensor.op.name], tensor.value_index) for tensor in outputs]).encode())
    return hasher.digest()


def _described(graph: graphs.FunctionGraph, value: Any) -> object:
    """Describes the value of an attribute, with the digests of functions for their names."""
    called = [value.func, *value.list.func] if value.HasField("func") or value.list.func else []
    if not called:
        return value.SerializeToString(deterministic=True)
    functions = [graphs.function_named(graph, reference.name) for reference in called]
    return [
        reference.name if function is None else digest(function.graph, function.graph.inputs, function.graph.outputs)
        for reference, function in zip(called, functions, strict=True)
    ]


_numbers = itertools.count()

# What a graph has the functions as that it calls, and the outermost one of a program all of its own.
_CALLED, _SHARED = "_ipu_outlined", "_ipu_outlined_codes"
# What a graph has the gradients as that contexts capture in calls, by the names of their operations.
_CAPTURES = "_ipu_outlined_captures"


class _Code:
    """A function of the runtime, and what differentiates its calls."""

    def __init__(self, name: str, graph: graphs.FunctionGraph) -> None:
        self.graph = graph
        self.results: list[tf.Tensor] = []
        self.outputs = len(graph.outputs)
        self.differentiated: list[int] = []
        self.needs: list[int] = []
        self.wanted: list[int] = []
        self.captures: list[gradient_capture.Capture] = []
        self.backward: _Code | None = None
        self.name = f"__ipu_outlined_{name}_{next(_numbers)}"
        self.function: Any = None

    def finish(self) -> None:
        """Makes the function of the graph, when its results are known."""
        self.results = list(self.graph.outputs)
        self.function = functions.of_graph(self.name, self.graph, called=False)
        for name in [name for name, code in list(_codes.items()) if code() is None]:
            _codes.pop(name, None)
        _codes[self.name] = weakref.ref(self)


# By the name of the function. The graphs of those who call it hold it.
_codes: dict[str, weakref.ref[_Code]] = {}


def _call_outlined(function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Nested:
    """Calls a function of the user's as an outlined one, in the program that is being traced."""
    name = "".join(letter if letter.isalnum() else "_" for letter in name)
    flat = tf.nest.flatten((args, dict(kwargs)), expand_composites=True)
    places = [at for at, leaf in enumerate(flat) if _is_value(leaf)]
    graph = graphs.FunctionGraph(name)
    body = user_code(function)

    def traced(*values: tf.Tensor) -> Nested:
        by_place = dict(zip(places, values, strict=True))
        arguments, named = tf.nest.pack_sequence_as(
            (args, dict(kwargs)), [by_place.get(at, leaf) for at, leaf in enumerate(flat)], expand_composites=True
        )
        returned = body(*arguments, **named)
        # What they do is done in its order in any case.
        return tf.nest.map_structure(lambda leaf: None if isinstance(leaf, tf.Operation) else leaf, returned)

    values = [tf.convert_to_tensor(flat[at]) for at in places]
    free_tags = gradient_capture.reusing_tags()
    graphs.trace_into(graph, traced, tuple(tf.TensorSpec(value.shape, value.dtype) for value in values))
    structure = graph.structured_outputs
    code = _Code(name, graph)
    if not _add_backward(code, name):
        free_tags()
        return body(*args, **kwargs)
    captured = [outside for outside, _ in graph.captures]
    captures = code.captures
    code = _known(code, len(values))
    for variable in graph.variables:
        if variable.trainable:
            gradients.note_use_of(variable)
    results = _emit(code, [*values, *captured])
    if captures:
        operation = results[0].op
        setattr(operation.graph, _CAPTURES, {**getattr(operation.graph, _CAPTURES, {}), operation.name: captures})
    remaining = iter(results[: code.outputs])
    return tf.nest.map_structure(
        lambda leaf: next(remaining) if isinstance(leaf, tf.Tensor) else leaf, structure, expand_composites=True
    )


def _is_value(leaf: object) -> bool:
    return isinstance(leaf, tf.Tensor) and leaf.dtype not in (tf.resource, tf.variant)


def _emit(code: _Code, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Adds a call of the function to the graph that is being built."""
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
    graphs.say_read_only(operation, graphs.read_only_inputs(code.graph))
    return [] if isinstance(results, tf.Operation) else list(results)


def _add_backward(code: _Code, name: str) -> bool:
    """Adds the backward pass; returns False if it cannot be outlined, as a loop would leave its gradient no tensor."""
    graph = code.graph
    code.differentiated = [at for at, tensor in enumerate(graph.outputs) if tensor.dtype.is_floating]
    xs = [
        at for at, tensor in enumerate(graph.inputs) if gradients.has_gradient(tensor) and not _names_a_state(graph, at)
    ]
    if not code.differentiated or not xs:
        return True
    ys = [graph.outputs[at] for at in code.differentiated]
    backward = GradientGraph(f"{name}_gradient", graph)

    def differentiate(*upstream: tf.Tensor) -> list[tf.Tensor]:
        of_inputs = gradients.between(ys, [graph.inputs[at] for at in xs], upstream, graph)
        code.wanted = [at for at, tensor in zip(xs, of_inputs, strict=True) if tensor is not None]
        captured = [tensor for capture in code.captures for tensor in capture.gradients]
        return [*(tf.convert_to_tensor(tensor) for tensor in of_inputs if tensor is not None), *captured]

    # A graph takes attributes, though it shows no `__dict__`.
    setattr(backward, gradient_capture.OUTLINED, code.captures)
    graphs.trace_into(backward, differentiate, tuple(tf.TensorSpec(each.shape, each.dtype) for each in ys))
    if not code.wanted:
        return True
    results = list(graph.outputs)
    for outside, _ in backward.captures:
        # A tensor that only the gradient uses passes through the call, too.
        inside = outside if getattr(outside, "graph", None) is graph else graph.capture(outside)
        inputs = {id(tensor): at for at, tensor in enumerate(graph.inputs)}
        if id(inside) in inputs:
            code.needs.append(inputs[id(inside)])
        elif inside.dtype == tf.variant:
            return False
        else:
            code.needs.append(-1 - len(results))
            results.append(inside)
    graph.outputs = results
    code.backward = _Code(f"{name}_gradient", backward)
    return True


def _names_a_state(graph: graphs.FunctionGraph, at: int) -> bool:
    """Returns True if an input names an object of the kernels, and no variable of the user's."""
    return any(inside is graph.inputs[at] and programs.is_native_state(outside) for outside, inside in graph.captures)


def _known(code: _Code, arguments: int) -> _Code:
    """Returns an earlier function that is the same; else this one, finished."""
    backward = code.backward
    key = (
        digest(code.graph, code.graph.inputs, code.graph.outputs),
        None if backward is None else digest(backward.graph, backward.graph.inputs, backward.graph.outputs),
        arguments,
        tuple(code.differentiated),
        tuple(code.needs),
        tuple(code.wanted),
    )
    *_, program = graphs.being_traced()
    shared: dict[Any, _Code] = getattr(program, _SHARED, {})
    setattr(program, _SHARED, shared)  # A graph takes attributes, though it shows no `__dict__`.
    known = shared.get(key)
    if known is None:
        for unfinished in (code, backward):
            if unfinished is not None:
                unfinished.finish()
        known = shared[key] = code
    return known


@tf.RegisterGradient("IpuOutlined")
def _gradient(op: tf.Operation, *upstream: Gradient | None) -> list[tf.Tensor | None]:
    real = op.outputs[0].op  # A tape shows another one.
    code = _codes[real.get_attr("f").name]()
    assert code is not None  # The graph of the call has it.
    inputs, outputs = list(real.inputs), list(real.outputs)
    known = set(code.differentiated)
    if code.backward is None or any(at not in known and _says_more(gradient) for at, gradient in enumerate(upstream)):
        code, more = _with_all(code, len(inputs))
        inputs += more
        outputs = _emit(code, inputs)
    of_inputs: list[tf.Tensor | None] = [None] * len(real.inputs)
    if code.backward is None:  # Nothing of it depends on what is differentiated.
        return of_inputs
    of_outputs = []
    for at in code.differentiated:
        gradient = upstream[at] if at < len(upstream) else None
        of_outputs.append(tf.zeros_like(outputs[at]) if gradient is None else tf.convert_to_tensor(gradient))
    needed = [inputs[at] if at >= 0 else outputs[-1 - at] for at in code.needs]
    results = iter(_emit(code.backward, [*of_outputs, *needed]))
    for at in code.wanted:
        gradient = next(results)
        if at < len(of_inputs):
            of_inputs[at] = gradient
    for capture in getattr(real.graph, _CAPTURES, {}).get(real.name, ()):
        of_call = [next(results) for _ in capture.gradients]
        gradient_capture.Capture(capture.context, capture.tag, of_call).note()
    return of_inputs


def _says_more(upstream: Gradient | None) -> bool:
    """Returns True unless a gradient is the zeros that TensorFlow makes for results that nothing depends on."""
    if upstream is None or not upstream.dtype.is_floating:
        return False
    if not isinstance(upstream, tf.Tensor):
        return True
    if upstream.op.type == "ZerosLike":
        return False
    value = tf.get_static_value(upstream)
    return value is None or bool(np.any(value))


def _with_all(code: _Code, inputs: int) -> tuple[_Code, list[tf.Tensor]]:
    """Makes a function of the same graph whose backward pass takes the gradients of all that the function returns."""
    code.graph.outputs = list(code.results)
    name = "again"
    again = _Code(name, code.graph)
    if not _add_backward(again, name):
        raise NotImplementedError(
            "an outlined function has a loop, whose gradient has no gradient there: call the function without"
            " `outlined_function` where gradients of its gradients are wanted"
        )
    captured = [outside for outside, _ in code.graph.captures]
    return _known(again, inputs), captured[len(captured) - (len(code.graph.inputs) - inputs) :]


# The attributes of a decorated function: without the user's module, or AutoGraph would rewrite it as the user's code, and
# look for a lambda where there is none.
_TOLD = tuple(name for name in functools.WRAPPER_ASSIGNMENTS if name != "__module__")


def outlined_function(
    func: Callable[..., Any] | None = None,
    unique_sharding: bool = False,
    keep_input_layouts: bool | None = None,
    name: str | None = None,
) -> Callable[..., Any]:
    """Shares one piece of code of a program, forward and backward, among the calls of a Python function.

        @outlined_function
        def block(x, weights):
            return tf.nn.relu(tf.matmul(x, weights))

    Each call traces the function. What comes of it and differs in its inputs alone (arguments of the same shapes and
    types, variables and tensors that it captures) is in the program once. Gradients flow to all inputs, and have
    gradients in their turn. Outside of a program the function is called as it is; so is one with a loop in it that has a
    gradient.

    Args:
      func: The function, from tensors and any other arguments to a structure of tensors. None where the decorator is
        called with the other arguments.
      unique_sharding: Whether the function is for one IPU of a program in shards. Checked: it tunes hardware.
      keep_input_layouts: Whether all calls have to have inputs of one layout. Checked likewise.
      name: A name for the function.

    Returns:
      The function, to be called as before; or a decorator.

    Raises:
      TypeError: `func` cannot be called, `unique_sharding` is no bool, `keep_input_layouts` neither bool nor None, or
        `name` no string.
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
        called = name or getattr(function, "__name__", "outlined")

        @functools.wraps(function, assigned=_TOLD, updated=())
        def call(*args: Any, **kwargs: Any) -> Nested:
            if tf.executing_eagerly() or not programs.is_tracing():
                return user_code(function)(*args, **kwargs)
            return _call_outlined(function, called, args, kwargs)

        return call

    return decorated if func is None else decorated(func)
