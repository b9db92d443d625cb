"""Checks that gradients accumulate in loops of as many iterations as that takes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._native.library import ops
from tensorflow_ipu._tensorflow import graphs, patches

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LOOPS = ("While", "StatelessWhile")


class AtRun(NamedTuple):
    """A number of iterations that the run knows: the least of these inputs of the loop, each plus its number, or 0."""

    limits: tuple[tuple[int, int], ...]


# What is known of the number of iterations: `math.inf` for ever, None nothing.
_Count = float | AtRun | None
# A loop's iteration: a number that starts at the first value and grows by the second, each iteration.
_Line = tuple[int, int]

# What a loop's counter and its limits are computed with.
_FOLDS: dict[str, Callable[..., np.ndarray]] = {
    "Add": np.add,
    "AddV2": np.add,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "Mul": np.multiply,
    "NotEqual": np.not_equal,
    "Sub": np.subtract,
}
_COMPARISONS = ("Less", "LessEqual", "Greater", "GreaterEqual")


def graph_of(function: str, graph: tf.Graph) -> graphs.FunctionGraph | None:
    """The graph of a function that an operation of `graph` calls by this name; None if it has none."""
    known = graphs.function_named(graph, function)
    return getattr(known, "graph", None)  # One of TensorFlow 1's functions has none.


def body_of(loop: tf.Operation) -> graphs.FunctionGraph | None:
    return _part(loop, "body")


def trip_count(loop: tf.Operation) -> int | AtRun | None:
    """The number of the iterations of a loop, one of `LOOPS`; None where nobody knows it before, or it never ends."""
    body, condition = body_of(loop), _part(loop, "cond")
    if body is None or condition is None:
        return None
    count = _Loop(loop, body, condition).holds(condition.outputs[0])
    return count if isinstance(count, AtRun) else None if count is None or count == math.inf else int(count)


class _Loop:
    """Reads a loop whose condition compares counters with limits."""

    def __init__(self, loop: tf.Operation, body: graphs.FunctionGraph, condition: graphs.FunctionGraph) -> None:
        self._initial = list(loop.inputs)
        self._body = body
        self._condition = condition

    def holds(self, tensor: tf.Tensor, for_good: bool = False) -> _Count:
        """For how many iterations a bool of the condition is true; None if unknown, or true again later and `for_good`."""
        tensor = _through(tensor)
        kind = tensor.op.type
        if kind in ("LogicalAnd", "LogicalOr"):
            # A loop ends with the first false: of an "or", that is where one ends and the other has ended for good.
            for_good = for_good or kind == "LogicalOr"
            left, right = (self.holds(operand, for_good) for operand in tensor.op.inputs)
            dominant, neutral, pick = (0, math.inf, min) if kind == "LogicalAnd" else (math.inf, 0, max)
            if dominant in (left, right):
                return dominant
            if neutral in (left, right):
                return right if left == neutral else left
            if isinstance(left, AtRun) and isinstance(right, AtRun) and pick is min:
                return AtRun(left.limits + right.limits)
            return pick(left, right) if isinstance(left, (int, float)) and isinstance(right, (int, float)) else None
        if kind in _COMPARISONS:
            left, right = (self._line(operand) for operand in tensor.op.inputs)
            if left is None or right is None:
                return self._at_run(kind, tensor.op.inputs)
            return _iterations(kind, left, right, for_good)
        value = _constant(tensor)
        return None if value is None else (math.inf if value else 0)

    def _line(self, tensor: tf.Tensor) -> _Line | None:
        tensor = _through(tensor)
        at = _position(tensor, self._condition.inputs)
        if at is None:
            value = _integer(_constant(tensor))
            return None if value is None else (value, 0)
        first, step = _integer(_constant(self._initial[at])), self._step(at)
        return None if first is None or step is None else (first, step)

    def _at_run(self, kind: str, operands: Sequence[tf.Tensor]) -> AtRun | None:
        """Returns the number if a counter goes up by 1 to a limit that is an input of the loop."""
        counter, limit = operands if kind.startswith("Less") else reversed(operands)
        line, at = self._line(counter), _position(_through(limit), self._condition.inputs)
        if line is None or line[1] != 1 or at is None or self._step(at) != 0 or self._initial[at].shape.rank != 0:
            return None
        return AtRun(((at, kind.endswith("Equal") - line[0]),))

    def _step(self, at: int) -> int | None:
        """Returns by how much an iteration changes the carried value at this position."""
        after = _through(self._body.outputs[at])
        if after is self._body.inputs[at]:
            return 0
        if after.op.type not in ("Add", "AddV2", "Sub"):
            return None
        left, right = (_through(operand) for operand in after.op.inputs)
        if left is self._body.inputs[at]:
            step = _integer(_constant(right))
            return -step if step is not None and after.op.type == "Sub" else step
        if right is self._body.inputs[at] and after.op.type != "Sub":
            return _integer(_constant(left))
        return None


def _iterations(kind: str, left: _Line, right: _Line, for_good: bool) -> float | None:
    """Returns the number of iterations for which a comparison of two lines holds."""
    if kind.startswith("Greater"):
        left, right = right, left
    gap, change = right[0] - left[0] + kind.endswith("Equal"), right[1] - left[1]
    if gap <= 0:
        return None if for_good and change > 0 else 0
    return math.inf if change >= 0 else -(gap // change)


def _part(loop: tf.Operation, name: str) -> graphs.FunctionGraph | None:
    graph = getattr(loop, f"_{name}_graph", None)
    return graph_of(loop.get_attr(name).name, loop.graph) if graph is None else graph


def _through(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the tensor from which this one has its value unchanged."""
    while tensor.op.type == "Identity" or (tensor.op.type == "Cast" and tensor.dtype.is_integer):
        tensor = tensor.op.inputs[0]
    return tensor


def _position(tensor: tf.Tensor, tensors: Iterable[tf.Tensor]) -> int | None:
    return next((at for at, other in enumerate(tensors) if other is tensor), None)


def _integer(value: np.ndarray | None) -> int | None:
    if value is None or np.ndim(value) != 0 or not np.issubdtype(np.asarray(value).dtype, np.integer):
        return None
    return int(value)


def _constant(tensor: tf.Tensor) -> np.ndarray | None:
    """Returns the value of a tensor as an array if it is constant in the graphs around; else None."""
    value = tf.get_static_value(tensor)
    if value is not None or not hasattr(tensor, "graph"):
        return value
    operation = tensor.op
    if operation.type == "Placeholder":
        outside = next((outer for outer, inner in getattr(tensor.graph, "captures", ()) if inner is tensor), None)
        return None if outside is None or outside.dtype == tf.resource else _constant(outside)
    if operation.type in ("Identity", "Cast"):
        value = _constant(operation.inputs[0])
        return None if value is None else np.asarray(value).astype(tensor.dtype.as_numpy_dtype)
    if operation.type not in _FOLDS:
        return None
    operands = [_constant(operand) for operand in operation.inputs]
    return None if any(operand is None for operand in operands) else _FOLDS[operation.type](*operands)


_ATTRIBUTE = "_ipu_mini_batches"

# The name of an optimizer, and the number of mini-batches that it accumulates.
_Demand = tuple[str, int]


def note(optimizer: str, num_mini_batches: int) -> None:
    """Notes in the program being traced that gradients accumulate here; the program is checked as its trace ends."""
    if tf.executing_eagerly():
        raise _outside((optimizer, num_mini_batches))
    mark = tf.no_op(name=f"{optimizer}_in_loop")
    demand = tf.compat.v1.AttrValue(s=f"{optimizer} {num_mini_batches}".encode())
    graphs.set_attribute(mark, _ATTRIBUTE, demand)
    for graph in graphs.being_traced():
        patches.ACCUMULATION_LOOPS.apply_while(graph, _check)


def _check(graph: graphs.FunctionGraph) -> None:
    """Checks a graph of which TensorFlow is about to make a function."""
    # The loop may be in the function around, whose turn is yet to come.
    if not graphs.is_function(graphs.enclosing(graph)):
        with graph.as_default():
            for demand in _outside_loops(graph, {}, graph):
                raise _outside(demand)


def _outside_loops(
    graph: graphs.FunctionGraph, known: dict[int, list[_Demand]], building: graphs.FunctionGraph
) -> list[_Demand]:
    """Returns demands of a graph and of called functions that are in no loop of theirs; checks those that are in one."""
    if id(graph) in known:
        return known[id(graph)]
    found = known[id(graph)] = []
    for operation in list(graph.get_operations()):
        if operation.type in LOOPS:
            body = body_of(operation)
            demands = [] if body is None else _outside_loops(body, known, building)
            if demands:
                count = trip_count(operation)
                if isinstance(count, AtRun) and graph is building and programs.is_tracing():
                    _check_at_run(demands, operation, count)
                else:
                    _check_count(demands, count)
        elif operation.type == "NoOp":
            if _ATTRIBUTE in operation.node_def.attr:
                optimizer, number = operation.get_attr(_ATTRIBUTE).decode().split()
                found.append((optimizer, int(number)))
        else:
            for callee in _callees(operation):
                found += _outside_loops(callee, known, building)
    return found


def _callees(operation: tf.Operation) -> list[graphs.FunctionGraph]:
    attributes = operation.node_def.attr.values()
    names = [attribute.func.name for attribute in attributes if attribute.HasField("func")]
    names += [function.name for attribute in attributes for function in attribute.list.func]
    graphs = [graph_of(name, operation.graph) for name in names]
    return [graph for graph in graphs if graph is not None]


def _check_count(demands: list[_Demand], iterations: int | AtRun | None) -> None:
    for demand in demands:
        _, number = demand
        if number == 1 or (isinstance(iterations, int) and iterations % number == 0):
            continue
        if isinstance(iterations, int):
            raise _failed(f"{iterations}".join(_words_of_multiple(demand)))
        raise _failed(
            f"{_words(demand)} in a loop whose number of iterations is not known when the program is traced: some would"
            " never be applied. Give the loop a number that is a Python int, a constant or an argument of the program, and"
            " leave it by no `break`"
        )


def _check_at_run(demands: list[_Demand], loop: tf.Operation, count: AtRun) -> None:
    """Lets the run check the number of iterations: the loop gets its limit from the check."""
    with tf.control_dependencies(None), tf.device(loop.device):
        most = [tf.cast(loop.inputs[at], tf.int64) + added for at, added in count.limits]
        iterations = tf.maximum(functools.reduce(tf.minimum, most), 0)
        checked = iterations
        for demand in demands:
            before, after = _words_of_multiple(demand)
            checked = ops.ipu_micro_batches(
                checked, multiple=demand[1], least=0, largest=tf.int64.max, before=before, after=after
            )
        # Not the checked number itself: where there are no iterations, the limit may be below it.
        at, _ = count.limits[0]
        limit = loop.inputs[at]
        graphs.replace_input(loop, at, limit + tf.cast(checked - iterations, limit.dtype))


def _words(demand: _Demand) -> str:
    optimizer, number = demand
    return f"`{optimizer}` accumulates the gradients of `num_mini_batches={number}` mini-batches"


def _words_of_multiple(demand: _Demand) -> tuple[str, str]:
    """Returns the message for a number of iterations that is no multiple: what comes before and after the number."""
    return (
        f"{_words(demand)} in a loop of ",
        " iterations, which is no multiple of it: some would never be applied. Make the one a multiple of the other",
    )


def _outside(demand: _Demand) -> tf.errors.FailedPreconditionError:
    return _failed(
        f"{_words(demand)}, but is not inside a training loop of a program. Apply gradients in the body of a loop over"
        " `tf.range`, or of `loops.repeat`"
    )


def _failed(message: str) -> tf.errors.FailedPreconditionError:
    return tf.errors.FailedPreconditionError(None, None, message)
