"""Rejects programs that cannot run on an IPU, and explains errors.

A message names the operation, its Keras layer and the user's line, and suggests an alternative.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from tensorflow_ipu._native.library import native
from tensorflow_ipu._tensorflow import functions, graphs, op_errors
from tensorflow_ipu._tensorflow.graphs import CALLS, functions_of, named_operations, without_inlining
from tensorflow_ipu.programs.diagnostics.tracebacks import frames_below_user, hlo, user_frame, user_lines

# The files of Keras that call layers.
_LAYER_CALL = ("/keras/src/layers/layer.py", "/tf_keras/src/engine/base_layer.py")

# The names of scopes that TensorFlow adds.
_GENERATED = re.compile(r"(while|cond|switch_case|gradient_tape|gradients|(Stateful)?PartitionedCall)(_\d+)?")

_ASSIGNING = {"ResourceStridedSliceAssign", "TensorStridedSliceUpdate"}

# The error of TensorFlow's bridge for an input that must be constant: its position, and the name and type of the
# operation.
_NOT_CONSTANT = re.compile(r"Input (\d+) to node `([^`]+)` with op (\S+) must be a compile-time constant")

# Operations with a result whose size depends on the values of the input.
_SELECTING = {"DynamicPartition", "Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2", "Where"} | {
    f"NonMaxSuppression{version}" for version in ("", "V2", "V3", "V4", "V5")
}
# Operations with a result whose size depends on values, if an input that sets the size is not constant.
_SIZED = _SELECTING | {"BroadcastTo", "Fill", "Range", "Slice", "StridedSlice"}
_OPTIMIZER = re.compile(r"/(keras|tf_keras|tensorflow\w*)/(\w+/)*\w*optimizer")
# An instruction in HLO text whose shape has a bound instead of a size, such as `f32[<=8]`.
_BOUNDED = re.compile(r"^ *(?:ROOT )?\S+ = \w+\[[^\]]*<=.*op_name=\"([^\"]*)\"", re.MULTILINE)

# The control flow of TensorFlow 1. XLA compiles it as a whole, so these operations are not checked one by one.
_CONTROL_FLOW = {
    f"{reference}{name}" for reference in ("", "Ref") for name in ("Enter", "Exit", "Merge", "NextIteration", "Switch")
} | {"LoopCond"}


class _ScopedOperation(NamedTuple):
    operation: tf.Operation
    scope: tuple[str, ...]  # The scopes of the calls that lead to the operation's function.


def check(program: functions.ConcreteFunction, inputs: Sequence[tf.Tensor], device: str) -> None:
    """Raises an error for a program with types, variables or shapes that the device does not support."""
    _check_types("input", program.inputs)
    _check_types("output", program.outputs)
    places = {id(variable.handle): (variable.name, variable.device) for variable in program.variables}
    variables = len(places)
    for index, tensor in enumerate(program.captured_inputs):
        if tensor.dtype == tf.resource:
            places.setdefault(id(tensor), (f"captured resource {index}", tensor.device))
    # Other resources belong to summaries, datasets and tables. `refuse` names the line that uses them.
    if any(place and not _is_same(place, device) for _, place in list(places.values())[variables:]):
        refuse(program)
    check_places(places.values(), device)
    if tf.executing_eagerly():
        refuse_shapes_of_data(program, inputs, device)


def _check_types(kind: str, tensors: list[tf.Tensor]) -> None:
    for tensor in tensors:
        if tensor.dtype == tf.float64:
            raise TypeError(
                f"Unsupported data type for {kind}: float64 (`{tensor.name}` of shape {tensor.shape}). An IPU has no"
                f" float64: `tf.cast` the {kind} to float32 or float16"
            )
        if tensor.dtype == tf.string:
            raise TypeError(
                f"Unsupported data type for {kind}: string (`{tensor.name}` of shape {tensor.shape}). An IPU has no strings:"
                " turn them to numbers on the host, where the data is made (`dataset.map`)"
            )


_NAMED_PLACES = 6  # An error names at most this number of variables.


def check_places(places: Iterable[tuple[str, str]], device: str) -> None:
    """Raises `ValueError` if a place, the name and the device of a resource, is not on the program's device."""
    elsewhere = [
        f"`{name}` on `{short(place)}`" for name, place in sorted(places) if place and not _is_same(place, device)
    ]
    unnamed = len(elsewhere) - _NAMED_PLACES
    if elsewhere:
        raise ValueError(
            f"the program runs on `{short(device)}`, but uses variables (or iterators, or queues) of another device:"
            f" {', '.join(elsewhere[:_NAMED_PLACES])}{f' and {unnamed} more' if unnamed > 0 else ''}. Make the model"
            " inside `strategy.scope()` of the strategy that runs the program, and optimizers, variables and iterators too. A"
            " lookup table is on the host: look values up in the dataset, by `dataset.map`"
        )


def _is_same(place: str, device: str) -> bool:
    """Returns True if two names mean the same device; graphs may shorten names."""
    if place == device:
        return True
    specs = (tf.DeviceSpec.from_string(name) for name in (place, device))
    return len({(spec.device_type, spec.device_index or 0) for spec in specs}) == 1


def short(device: str) -> str:
    """Returns the name of a device without job, replica and task: `/device:IPU:0`."""
    return device[device.rfind("/device:") :]


def refuse(program: functions.ConcreteFunction) -> None:
    """Raises `tf.errors.InvalidArgumentError` for a program that XLA or an IPU cannot compile."""
    if next(_uncompilable(program.graph, ()), None) is not None:  # This check is fast, and settles most programs.
        uncompilable = list(_needed(program.graph, program.outputs, (), _is_uncompilable))
        if uncompilable:
            raise tf.errors.InvalidArgumentError(None, None, _uncompilable_message(uncompilable))
    for scoped in _sized_by_data(program):
        if scoped.operation.type in _SELECTING:
            raise tf.errors.InvalidArgumentError(None, None, _shape_message(scoped))


def refuse_shapes_of_data(program: functions.ConcreteFunction, inputs: Sequence[tf.Tensor], device: str) -> None:
    """Raises `tf.errors.InvalidArgumentError` for a program with shapes that depend on data.

    XLA:CPU would run the program, since it gives such shapes a bound. A real IPU would not. If an operation may have
    such a shape, the HLO is searched for bounds, because XLA may have folded the shape to a constant.
    """
    suspected = {id(scoped.operation): scoped for scoped in _sized_by_data(program)}
    if not suspected:
        return
    try:
        text = hlo(program, inputs, device, "hlo").decode()
    except (tf.errors.OpError, ValueError):  # The compilation will fail with an explanation.
        return
    bounded = {without_inlining(name) for name in _BOUNDED.findall(text)}
    for name, operation in named_operations(program.graph):
        if name in bounded and id(operation) in suspected:
            raise tf.errors.InvalidArgumentError(None, None, _shape_message(suspected[id(operation)]))


def _sized_by_data(program: functions.ConcreteFunction) -> list[_ScopedOperation]:
    """Returns the needed operations with a result whose shape may depend on data, in the order of the graph."""
    operations = (operation for graph in graphs.graphs_of(program) for operation in graph.get_operations())
    if not any(map(_is_sized_by_data, operations)):
        return []
    return list(_needed(program.graph, program.outputs, (), _is_sized_by_data))[::-1]


def _is_sized_by_data(operation: tf.Operation) -> bool:
    if operation.type not in _SIZED or all(tensor.shape.is_fully_defined() for tensor in operation.outputs):
        return False
    # Optimizers remove duplicate rows from sparse gradients. On the machine, one operation does this.
    return not any(map(_OPTIMIZER.search, frames_below_user(operation)))


def _shape_message(scoped: _ScopedOperation) -> str:
    place = _place(scoped, user_frame(scoped.operation), _layers(scoped))
    advice = _ONE_SIZE
    if scoped.operation.type in _SELECTING:
        advice = (
            "Instead, keep all elements, and mask those that do not count, as `tf.where(condition, x, 0)` does; select"
            f" elements where the data is made (`dataset.map`), {_IN_SCOPE}"
        )
    return (
        "A program for an IPU has static shapes, and the shape of the result of"
        f" `{scoped.operation.type}`{place}{',' if place else ''} depends on data. {advice}"
    )


_ONE_SIZE = (
    "Instead, pass a Python number or a `tf.constant`; if sizes differ, cut or pad to one size where the data is made"
    " (`dataset.map`), and mask what does not count, as `tf.where(tf.range(max_size) < size, x, 0)` does"
)


def _why_uncompilable(program: functions.ConcreteFunction, error: str) -> str | None:
    uncompilable = list(_needed(program.graph, program.outputs, (), _is_uncompilable))
    if not uncompilable:
        # XLA may have failed at an operation that no result needs.
        candidates = _uncompilable(program.graph, ())
        uncompilable = [scoped for scoped in candidates if f"{{{{node {scoped.operation.name}}}}}" in error][::-1]
    return _uncompilable_message(uncompilable) if uncompilable else _unknown_shape(program, error)


def _unknown_shape(program: functions.ConcreteFunction, error: str) -> str | None:
    """Explains the error of an operation whose shape or axis depends on data; returns None for other errors."""
    match = _NOT_CONSTANT.search(error)
    if match is None:
        return None
    position, name, kind = match.groups()
    scoped = _named(program, kind, without_inlining(name))
    if scoped is None:
        return None
    place = _place(scoped, user_frame(scoped.operation), _layers(scoped))
    if scoped.operation.type in _ASSIGNING:
        return (
            "In a program for an IPU, the number of elements that are assigned to a slice must be static, but it"
            f" depends on data for `{scoped.operation.type}`{place}. Instead, assign a value of the slice's shape, or"
            " `variable.assign(tf.tensor_scatter_nd_update(variable, indices, updates))`"
        )
    return (
        f"A program for an IPU has static shapes, and input {position} of `{scoped.operation.type}`{place}, which sets"
        f" the shape or the axis of its result, depends on data. {_ONE_SIZE}"
    )


def _named(program: functions.ConcreteFunction, kind: str, name: str) -> _ScopedOperation | None:
    """Returns the operation of a name such as `while/body/Fill`, which may begin with the calls of its function.

    The operation with the longest matching name is returned, or None if several lines of the user could be meant.
    """
    matches = [scoped for scoped in _operations(program.graph, ()) if scoped.operation.type == kind]
    matches = [scoped for scoped in matches if f"/{name}".endswith(f"/{scoped.operation.name}")]
    longest = max((len(scoped.operation.name) for scoped in matches), default=0)
    matches = [scoped for scoped in matches if len(scoped.operation.name) == longest]
    return matches[0] if len({user_frame(scoped.operation) for scoped in matches}) == 1 else None


def _needed(
    graph: graphs.FunctionGraph,
    outputs: Sequence[tf.Tensor],
    scope: tuple[str, ...],
    is_sought: Callable[[tf.Operation], bool],
) -> Iterator[_ScopedOperation]:
    """Yields the sought operations that XLA has to compile, the last one first.

    XLA compiles an operation if an output or a side effect needs it, and if it cannot fold the operation to a constant.
    A first walk, forward, finds the operations with constant inputs only. A second walk, backward, marks the operations
    that are needed: it begins at the outputs and the control outputs, and adds the inputs of each marked operation.
    Called functions are searched in the same way, from the outputs that their call needs. The cost is linear in the
    operations.
    """
    operations = graph.get_operations()
    constant: set[tf.Operation] = set()
    for operation in operations:
        kind = operation.type
        if (
            kind != "Placeholder"
            and not _is_stateful(kind)
            and all(tensor.op in constant for tensor in operation.inputs)
        ):
            constant.add(operation)
    needed_tensors = {id(tensor) for tensor in outputs}
    needed_operations = set(graph.control_outputs)
    for operation in reversed(operations):  # An operation follows its inputs.
        are_needed = [id(tensor) in needed_tensors for tensor in operation.outputs]
        if operation not in needed_operations and not any(are_needed):
            continue
        if operation not in constant:
            yield from _sought_in(graph, operation, are_needed, scope, is_sought)
        needed_tensors.update(id(tensor) for tensor in operation.inputs)
        needed_operations.update(operation.control_inputs)


def _sought_in(
    graph: graphs.FunctionGraph,
    operation: tf.Operation,
    are_needed: Sequence[bool],
    scope: tuple[str, ...],
    is_sought: Callable[[tf.Operation], bool],
) -> Iterator[_ScopedOperation]:
    for function in functions_of(graph, operation):
        outputs = function.outputs
        if operation.type in CALLS and len(outputs) == len(are_needed):  # A gradient may have added outputs.
            outputs = [tensor for tensor, is_needed in zip(outputs, are_needed, strict=True) if is_needed]
        inside = _scope(operation, scope) if operation.type in CALLS else scope
        yield from _needed(function, outputs, inside, is_sought)
    if is_sought(operation):
        yield _ScopedOperation(operation, scope)


def _uncompilable(graph: graphs.FunctionGraph, scope: tuple[str, ...]) -> Iterator[_ScopedOperation]:
    return (scoped for scoped in _operations(graph, scope) if _is_uncompilable(scoped.operation))


def _operations(graph: graphs.FunctionGraph, scope: tuple[str, ...]) -> Iterator[_ScopedOperation]:
    for operation in graph.get_operations():
        for function in functions_of(graph, operation):
            yield from _operations(function, _scope(operation, scope) if operation.type in CALLS else scope)
        yield _ScopedOperation(operation, scope)


def _is_uncompilable(operation: tf.Operation) -> bool:
    if (
        operation.type == "Placeholder"
        or operation.type in _CONTROL_FLOW
        or graphs.definition_of(operation.type) is None
    ):
        return False
    key = (operation.type, *(tensor.dtype for tensor in (*operation.inputs, *operation.outputs)))
    is_uncompilable = _are_uncompilable.get(key)
    if is_uncompilable is None:
        node = operation.node_def.SerializeToString()
        is_uncompilable = _are_uncompilable[key] = not native.ipu_compiles(node, len(node))
    return is_uncompilable


# Cached results of `_is_uncompilable`, by the type of an operation and the dtypes of its inputs and outputs.
_are_uncompilable: dict[tuple[str | tf.DType, ...], bool] = {}


def _is_stateful(kind: str) -> bool:
    definition = graphs.definition_of(kind)
    return definition is None or definition.is_stateful  # None for a function of the user.


class _Family(NamedTuple):
    """Operations that users know by another name, or that have a specific alternative."""

    contains: Callable[[tf.Operation], bool]
    name: str
    advice: str


# The alternative that exists for every operation.
_IN_SCOPE = "or let the host do it while the program runs, in a `scopes.outside_compilation_scope`"

_FAMILIES = (
    _Family(
        lambda operation: operation.type in ("PrintV2", "Print"),
        "a print",
        "print by `tf.print`, or `internal_ops.print_tensor`",
    ),
    _Family(
        lambda operation: operation.type in ("PyFunc", "PyFuncStateless", "EagerPyFunc"),
        "a Python function, by `tf.numpy_function` or `tf.py_function`",
        f"write it with TensorFlow's operations, or call it where the data is made (`dataset.map`), {_IN_SCOPE}",
    ),
    _Family(
        lambda operation: "Summary" in operation.type,
        "`tf.summary`",
        "return the value from the program, or enqueue it to an outfeed, and write the summary on the host,"
        f" {_IN_SCOPE}",
    ),
    _Family(
        lambda operation: "Dataset" in operation.type or "Iterator" in operation.type,
        "a dataset",
        "make it outside of the program, and pass the program `iter(dataset)`, made in the strategy's scope, or an"
        " `IPUInfeedQueue`",
    ),
    _Family(
        lambda operation: operation.type.startswith("LookupTable") or "HashTable" in operation.type,
        "a lookup table",
        f"look up where the data is made (`dataset.map`), {_IN_SCOPE}",
    ),
    _Family(
        lambda operation: any(tensor.dtype == tf.string for tensor in (*operation.inputs, *operation.outputs)),
        "strings",
        f"turn them to numbers where the data is made (`dataset.map`), {_IN_SCOPE}",
    ),
)


def _uncompilable_message(uncompilable: Sequence[_ScopedOperation]) -> str:
    """Returns the error message for operations in reverse order, with an entry for each line of the user's code."""
    places: dict[tuple[tuple[str, int] | None, str | None], list[_ScopedOperation]] = {}
    for scoped in reversed(uncompilable):
        places.setdefault((user_frame(scoped.operation), _layers(scoped)), []).append(scoped)
    entries = [_message_entry(place, layers, at_place) for (place, layers), at_place in places.items()]
    start = "A program for an IPU is compiled by XLA, which has no kernel for "
    if len(entries) == 1:
        return start + entries[0]
    return "\n".join([f"{start}these operations:", *(f"  - {entry}" for entry in entries)])


def _message_entry(place: tuple[str, int] | None, layers: str | None, at_place: Sequence[_ScopedOperation]) -> str:
    operations = [scoped.operation for scoped in at_place]
    kinds = ", ".join(f"`{kind}`" for kind in dict.fromkeys(operation.type for operation in operations))
    family = next((family for family in _FAMILIES if any(map(family.contains, operations))), None)
    text = kinds if family is None else f"{family.name} ({kinds})"
    advice = f"do that where the data is made (`dataset.map`), {_IN_SCOPE}"
    if layers is not None and family is None:
        advice = (
            "take the layer out of the model, and call it where the data is made: `dataset.map(lambda x, y: (layer(x), y))`"
            f", with `training=True` if it augments the data; {_IN_SCOPE}"
        )
    return f"{text}{_place(at_place[0], place, layers)}. Instead, {family.advice if family else advice}"


def _place(scoped: _ScopedOperation, place: tuple[str, int] | None, layers: str | None) -> str:
    """Returns text such as ` in layer `turn`, at model.py:7 (`x = turn(x)`)`, or nothing."""
    text, scope = "", "/".join(_scope(scoped.operation, scoped.scope))
    if layers is not None:
        text += f" in layer `{layers.split('/')[-1]}`" + (f" (`{layers}`)" if "/" in layers else "")
    elif scope:
        text += f" in scope `{scope}`"
    if place is not None:
        line = linecache.getline(*place).strip()
        text += f", at {place[0]}:{place[1]}" + (f" (`{line}`)" if line else "")
    return text


def _scope(operation: tf.Operation, outer_scope: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the scope of an operation, without names that TensorFlow adds."""
    return (*outer_scope, *(part for part in operation.name.split("/")[:-1] if not _GENERATED.fullmatch(part)))


def _layers(scoped: _ScopedOperation) -> str | None:
    """Returns the nested Keras layers that created an operation, such as `model/block/dense`; None if no layer did."""
    # Keras opens the scope of a layer twice per call, so TensorFlow appends a number to it.
    if not any(frame[0].endswith(_LAYER_CALL) for frame in scoped.operation.traceback or ()):
        return None
    return "/".join(re.sub(r"_\d+$", "", part) for part in _scope(scoped.operation, scoped.scope)) or None


# The beginning of the error in `ffi/precision_handlers.cc`, up to the name of the operation.
_EXCEPTION = re.compile(
    r"Floating point exception: (?P<operation>\w* `(?P<name>[^`]*)`)(?P<rest>.*?)(?: \[Op:.*)?$", re.DOTALL
)


def explained(program: functions.ConcreteFunction | None, error: tf.errors.OpError) -> tf.errors.OpError:
    """Returns an error that explains an error of compiling or running a program, and has it as its cause.

    Without an explanation, returns `error` with a shortened message. Without a program, an explanation names no line.
    """
    reason = None
    if isinstance(error, tf.errors.InvalidArgumentError):
        reason = _why_stopped(program, error.message)
        if reason is None and program is not None:
            reason = _why_uncompilable(program, error.message)
    if reason is None:
        return op_errors.with_plain_message(error)
    explanation = tf.errors.InvalidArgumentError(None, None, reason)
    explanation.__cause__ = error
    return explanation


def _why_stopped(program: functions.ConcreteFunction | None, error: str) -> str | None:
    match = _EXCEPTION.search(error)
    if match is None:
        return None
    line = None if program is None else user_lines(program).get(without_inlining(match["name"]))
    place = f" ({line})" if line else ""
    return f"Floating point exception: {match['operation']}{place}{match['rest']}"
