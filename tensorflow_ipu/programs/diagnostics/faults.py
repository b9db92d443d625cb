"""Refuses programs that cannot run on an IPU, and explains why: the operation, its layer, the user's line, and a remedy."""

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

# Frames of a Keras layer that is being called.
_LAYER_CALL = ("/keras/src/layers/layer.py", "/tf_keras/src/engine/base_layer.py")

# Scopes that TensorFlow makes by itself.
_GENERATED = re.compile(r"(while|cond|switch_case|gradient_tape|gradients|(Stateful)?PartitionedCall)(_\d+)?")

_ASSIGNING = {"ResourceStridedSliceAssign", "TensorStridedSliceUpdate"}

# What the message of a failed compilation says of an input that XLA has to know, and of its operation.
_NOT_CONSTANT = re.compile(r"Input (\d+) to node `([^`]+)` with op (\S+) must be a compile-time constant")

# What may return as many elements as the data say: whatever the data, and by the sizes that it is given.
_SELECTING = {"DynamicPartition", "Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2", "Where"} | {
    f"NonMaxSuppression{version}" for version in ("", "V2", "V3", "V4", "V5")
}
_SIZED = _SELECTING | {"BroadcastTo", "Fill", "Range", "Slice", "StridedSlice"}
_OPTIMIZER = re.compile(r"/(keras|tf_keras|tensorflow\w*)/(\w+/)*\w*optimizer")
# An instruction whose shape has a bound in the place of a size, in HLO as text.
_BOUNDED = re.compile(r"^ *(?:ROOT )?\S+ = \w+\[[^\]]*<=.*op_name=\"([^\"]*)\"", re.MULTILINE)

# XLA takes these for the control flow that they make up.
_CONTROL_FLOW = {
    f"{reference}{name}" for reference in ("", "Ref") for name in ("Enter", "Exit", "Merge", "NextIteration", "Switch")
} | {"LoopCond"}


class _Found(NamedTuple):
    operation: tf.Operation
    scope: tuple[str, ...]


def check(program: functions.ConcreteFunction, inputs: Sequence[tf.Tensor], device: str) -> None:
    """Refuses a program whose types, state or shapes cannot be on the device."""
    _check_types("input", program.inputs)
    _check_types("output", program.outputs)
    places = {id(variable.handle): (variable.name, variable.device) for variable in program.variables}
    named = len(places)
    for at, tensor in enumerate(program.captured_inputs):
        if tensor.dtype == tf.resource:
            places.setdefault(id(tensor), (f"captured state {at}", tensor.device))
    # State that has no name is of a summary, a dataset or a table, and is used in a line that has one.
    if any(place and not _is_same(place, device) for _, place in list(places.values())[named:]):
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


_MOST_NAMED = 6


def check_places(places: Iterable[tuple[str, str]], device: str) -> None:
    """Refuses state, by names and devices, that is on another device than the program's."""
    elsewhere = [
        f"`{name}` on `{short(place)}`" for name, place in sorted(places) if place and not _is_same(place, device)
    ]
    more = len(elsewhere) - _MOST_NAMED
    if elsewhere:
        raise ValueError(
            f"the program runs on `{short(device)}`, but uses variables (or iterators, or queues) of another device:"
            f" {', '.join(elsewhere[:_MOST_NAMED])}{f' and {more} more' if more > 0 else ''}. Make the model inside"
            " `strategy.scope()` of the strategy that runs the program, as optimizers, variables and iterators; a lookup table"
            " stays on the host, so look up where the dataset is made"
        )


def _is_same(place: str, device: str) -> bool:
    """Returns True if two names are of one device: a graph may leave out parts of them."""
    if place == device:
        return True
    one, other = tf.DeviceSpec.from_string(place), tf.DeviceSpec.from_string(device)
    return (one.device_type, one.device_index or 0) == (other.device_type, other.device_index or 0)


def short(device: str) -> str:
    """Returns the name of a device without job, replica and task."""
    return device[device.rfind("/device:") :]


def refuse(program: functions.ConcreteFunction) -> None:
    """Refuses a program that cannot be compiled before it goes into a graph."""
    if next(_all(program.graph, ()), None) is not None:  # For most programs this look is quick.
        found = list(_needed(program.graph, program.outputs, (), _is_uncompilable))
        if found:
            raise tf.errors.InvalidArgumentError(None, None, _words(found))
    for one in _sized_by_data(program):
        if one.operation.type in _SELECTING:
            raise tf.errors.InvalidArgumentError(None, None, _of_data(one))


def refuse_shapes_of_data(program: functions.ConcreteFunction, inputs: Sequence[tf.Tensor], device: str) -> None:
    """Refuses a program with shapes that depend on data, as a machine does: XLA:CPU has bounds for them, and runs it."""
    suspected = {id(one.operation): one for one in _sized_by_data(program)}
    if not suspected:  # As for most programs: for the others XLA tells what it folds.
        return
    try:
        text = hlo(program, inputs, device, "hlo").decode()
    except (tf.errors.OpError, ValueError):  # Which the compilation will explain.
        return
    bounded = {without_inlining(name) for name in _BOUNDED.findall(text)}
    for name, operation in named_operations(program.graph):
        if name in bounded and id(operation) in suspected:
            raise tf.errors.InvalidArgumentError(None, None, _of_data(suspected[id(operation)]))


def _sized_by_data(program: functions.ConcreteFunction) -> list[_Found]:
    """Returns the needed operations whose results may have a shape that depends on data, in their order."""
    operations = (operation for graph in graphs.graphs_of(program) for operation in graph.get_operations())
    if not any(map(_is_sized_by_data, operations)):
        return []
    return list(_needed(program.graph, program.outputs, (), _is_sized_by_data))[::-1]


def _is_sized_by_data(operation: tf.Operation) -> bool:
    if operation.type not in _SIZED or all(tensor.shape.is_fully_defined() for tensor in operation.outputs):
        return False
    # Optimizers make the rows unique that a gradient names, as those of the machine do in one operation.
    return not any(map(_OPTIMIZER.search, frames_below_user(operation)))


def _of_data(found: _Found) -> str:
    place = _place(found, user_frame(found.operation), _layers(found))
    way_out = _ONE_SIZE
    if found.operation.type in _SELECTING:
        way_out = (
            "The way out: keep all elements, and mask what does not count, as `tf.where(condition, x, 0)` does; do that where"
            f" the data is made (`dataset.map`), {_IN_SCOPE}"
        )
    return (
        "A program for an IPU has static shapes, and the shape of the result of"
        f" `{found.operation.type}`{place}{',' * bool(place)} depends on data. {way_out}"
    )


# The way out where sizes differ.
_ONE_SIZE = (
    "The way out: give it a Python number or a `tf.constant`; where sizes differ, cut or fill up to one size where the data"
    " is made (`dataset.map`), and mask what does not count, as `tf.where(tf.range(most) < size, x, 0)` does"
)


def _why_uncompilable(program: functions.ConcreteFunction, error: str) -> str | None:
    found = list(_needed(program.graph, program.outputs, (), _is_uncompilable))
    if not found:
        # What XLA stumbled over, though no result needs it.
        found = [one for one in _all(program.graph, ()) if f"{{{{node {one.operation.name}}}}}" in error][::-1]
    return _words(found) if found else _unknown_shape(program, error)


def _unknown_shape(program: functions.ConcreteFunction, error: str) -> str | None:
    """Explains an operation whose shape or axis depends on data; None if it failed for another reason."""
    fault = _NOT_CONSTANT.search(error)
    if fault is None:
        return None
    position, name, kind = fault.groups()
    found = _named(program, kind, without_inlining(name))
    if found is None:
        return None
    place = _place(found, user_frame(found.operation), _layers(found))
    if found.operation.type in _ASSIGNING:
        return (
            f"A program for an IPU has to know how many elements it assigns to a slice, by `{found.operation.type}`{place}."
            " The way out: assign a value of the slice's shape, or `variable.assign(tf.tensor_scatter_nd_update(variable,"
            " indices, updates))`"
        )
    return (
        f"A program for an IPU has static shapes, and input {position} of `{found.operation.type}`{place}, which makes up"
        f" the shape or the axis of its result, depends on data. {_ONE_SIZE}"
    )


def _named(program: functions.ConcreteFunction, kind: str, name: str) -> _Found | None:
    """Returns the operation of a name that begins with the calls of its function; None if several lines could be meant."""
    alike = [one for one in _operations(program.graph, ()) if one.operation.type == kind]
    alike = [one for one in alike if f"/{name}".endswith(f"/{one.operation.name}")]
    longest = max((len(one.operation.name) for one in alike), default=0)
    alike = [one for one in alike if len(one.operation.name) == longest]
    return alike[0] if len({user_frame(one.operation) for one in alike}) == 1 else None


def _needed(
    graph: graphs.FunctionGraph,
    outputs: Sequence[tf.Tensor],
    scope: tuple[str, ...],
    is_sought: Callable[[tf.Operation], bool],
) -> Iterator[_Found]:
    """Yields the sought operations that `outputs` and side effects need and XLA cannot fold, the last one first."""
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
    wanted = {id(tensor) for tensor in outputs}
    run = set(graph.control_outputs)
    for operation in reversed(operations):  # Each comes after what it needs.
        results = operation.outputs
        if operation not in run and not any(id(tensor) in wanted for tensor in results):
            continue
        if operation not in constant:
            yield from _of_operation(graph, operation, [id(tensor) in wanted for tensor in results], scope, is_sought)
        wanted.update(id(tensor) for tensor in operation.inputs)
        run.update(operation.control_inputs)


def _of_operation(
    graph: graphs.FunctionGraph,
    operation: tf.Operation,
    wanted: Sequence[bool],
    scope: tuple[str, ...],
    is_sought: Callable[[tf.Operation], bool],
) -> Iterator[_Found]:
    for function in functions_of(graph, operation):
        outputs = function.outputs
        if operation.type in CALLS and len(outputs) == len(wanted):  # The gradient may have added outputs since.
            outputs = [tensor for tensor, is_wanted in zip(outputs, wanted, strict=True) if is_wanted]
        inside = _scope(operation, scope) if operation.type in CALLS else scope
        yield from _needed(function, outputs, inside, is_sought)
    if is_sought(operation):
        yield _Found(operation, scope)


def _all(graph: graphs.FunctionGraph, scope: tuple[str, ...]) -> Iterator[_Found]:
    return (one for one in _operations(graph, scope) if _is_uncompilable(one.operation))


def _operations(graph: graphs.FunctionGraph, scope: tuple[str, ...]) -> Iterator[_Found]:
    for operation in graph.get_operations():
        for function in functions_of(graph, operation):
            yield from _operations(function, _scope(operation, scope) if operation.type in CALLS else scope)
        yield _Found(operation, scope)


def _is_uncompilable(operation: tf.Operation) -> bool:
    if (
        operation.type == "Placeholder"
        or operation.type in _CONTROL_FLOW
        or graphs.definition_of(operation.type) is None
    ):
        return False
    key = (operation.type, *(tensor.dtype for tensor in (*operation.inputs, *operation.outputs)))
    answer = _answers.get(key)
    if answer is None:
        node = operation.node_def.SerializeToString()
        answer = _answers[key] = not native.ipu_compiles(node, len(node))
    return answer


_answers: dict[tuple[str | tf.DType, ...], bool] = {}


def _is_stateful(kind: str) -> bool:
    definition = graphs.definition_of(kind)
    return definition is None or definition.is_stateful  # None: a function of the user.


class _Family(NamedTuple):
    """Operations that users know by another name, or that have a remedy of their own."""

    holds: Callable[[tf.Operation], bool]
    name: str
    way_out: str


# The one way out that all operations have.
_IN_SCOPE = "or have the host do it in the midst of the program, in a `scopes.outside_compilation_scope`"

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
        f"have the program return the value, or enqueue it to an outfeed, and write the summary on the host, {_IN_SCOPE}",
    ),
    _Family(
        lambda operation: "Dataset" in operation.type or "Iterator" in operation.type,
        "a dataset",
        "make it outside of the program, and give the program `iter(dataset)`, made in the strategy's scope, or an"
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


def _words(found: Sequence[_Found]) -> str:
    """Returns the message: a sentence for each line of the user's that made such operations, the last one first."""
    places: dict[tuple[tuple[str, int] | None, str | None], list[_Found]] = {}
    for one in reversed(found):
        places.setdefault((user_frame(one.operation), _layers(one)), []).append(one)
    faults = [_fault(place, layers, together) for (place, layers), together in places.items()]
    start = "A program for an IPU is compiled by XLA, which has no kernel for "
    return start + (
        faults[0] if len(faults) == 1 else "\n".join(["what is here:", *(f"  - {fault}" for fault in faults)])
    )


def _fault(place: tuple[str, int] | None, layers: str | None, found: Sequence[_Found]) -> str:
    operations = [one.operation for one in found]
    kinds = ", ".join(f"`{kind}`" for kind in dict.fromkeys(operation.type for operation in operations))
    family = next((family for family in _FAMILIES if any(map(family.holds, operations))), None)
    text = kinds if family is None else f"{family.name} ({kinds})"
    way_out = f"do that where the data is made (`dataset.map`), {_IN_SCOPE}"
    if layers is not None and family is None:
        way_out = (
            "take the layer out of the model, and call it where the data is made: `dataset.map(lambda x, y: (layer(x), y))`"
            f", with `training=True` if it augments the data; {_IN_SCOPE}"
        )
    return f"{text}{_place(found[0], place, layers)}. The way out: {family.way_out if family else way_out}"


def _place(found: _Found, place: tuple[str, int] | None, layers: str | None) -> str:
    text, scope = "", "/".join(_scope(found.operation, found.scope))
    if layers is not None:
        text += f" in layer `{layers.split('/')[-1]}`" + (f" (`{layers}`)" if "/" in layers else "")
    elif scope:
        text += f" in scope `{scope}`"
    if place is not None:
        line = linecache.getline(*place).strip()
        text += f", at {place[0]}:{place[1]}" + (f" (`{line}`)" if line else "")
    return text


def _scope(operation: tf.Operation, around: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the scope of an operation, without what TensorFlow adds to it."""
    return (*around, *(part for part in operation.name.split("/")[:-1] if not _GENERATED.fullmatch(part)))


def _layers(found: _Found) -> str | None:
    """Returns the names of the Keras layers that made an operation, from the model inwards; None if no layer did."""
    # Keras opens the scope of a layer twice a call, so TensorFlow adds a number to it.
    if not any(frame[0].endswith(_LAYER_CALL) for frame in found.operation.traceback or ()):
        return None
    return "/".join(re.sub(r"_\d+$", "", part) for part in _scope(found.operation, found.scope)) or None


# How `ffi/precision_handlers.cc` begins, up to the name of the operation.
_FAULT = re.compile(
    r"Floating point exception: (?P<operation>\w* `(?P<name>[^`]*)`)(?P<rest>.*?)(?: \[Op:.*)?$", re.DOTALL
)


def explained(program: functions.ConcreteFunction | None, error: tf.errors.OpError) -> tf.errors.OpError:
    """Returns an error of compiling or running a program with an explanation, or with its operation's message alone.

    The explanation has the error as its cause. Without a program, it names no line.
    """
    reason = None
    if isinstance(error, tf.errors.InvalidArgumentError):
        reason = _why_stopped(program, error.message)
        if reason is None and program is not None:
            reason = _why_uncompilable(program, error.message)
    if reason is None:
        return op_errors.told_plainly(error)
    explanation = tf.errors.InvalidArgumentError(None, None, reason)
    explanation.__cause__ = error
    return explanation


def _why_stopped(program: functions.ConcreteFunction | None, error: str) -> str | None:
    found = _FAULT.search(error)
    if found is None:
        return None
    line = None if program is None else user_lines(program).get(without_inlining(found["name"]))
    place = f" ({line})" if line else ""
    return f"Floating point exception: {found['operation']}{place}{found['rest']}"
