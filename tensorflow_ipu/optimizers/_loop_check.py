"""The check that loops with accumulated gradients have a multiple of `num_mini_batches` iterations."""

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
    """A number of iterations that is known at run time: the smallest limit, or 0 if that is negative.

    Each limit is the index of an input of the loop, and a number to add to this input.
    """

    limits: tuple[tuple[int, int], ...]


# A number of iterations: `math.inf` for an endless loop, None if it is unknown.
_Count = float | AtRun | None
# A number that changes linearly: its value in the first iteration, and the increment of each iteration.
_Line = tuple[int, int]

# The operations that are evaluated on constants to find the counter of a loop and its limits.
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
    """Returns the graph of a function that operations of `graph` call by this name; None if it has no graph."""
    definition = graphs.function_named(graph, function)
    return getattr(definition, "graph", None)  # Functions of TensorFlow 1 may have no graph.


def body_of(loop: tf.Operation) -> graphs.FunctionGraph | None:
    return _part(loop, "body")


def trip_count(loop: tf.Operation) -> int | AtRun | None:
    """Returns the number of iterations of a loop, one of `LOOPS`; None if it is unknown or the loop never ends."""
    body, condition = body_of(loop), _part(loop, "cond")
    if body is None or condition is None:
        return None
    count = _Loop(loop, body, condition).holds(condition.outputs[0])
    return count if isinstance(count, AtRun) else None if count is None or count == math.inf else int(count)


class _Loop:
    """A loop whose condition compares counters with limits.

    Its number of iterations follows from the graphs of condition and body, without running them. A counter is a loop
    variable to which the body adds a constant. So its values are on a line, `(first value, step)`. A comparison of two
    lines holds until they cross. For `for i in range(3, 20, 5)`:

        i < 20     lines (3, 5) and (20, 0), gap 17, closing by 5 each iteration: ceil(17 / 5) = 4 iterations

    "And" of two conditions ends with the first of them, so with the smaller number; "or" ends with the larger number.
    If the limit is not constant but an input of the loop, the number is computed at run time: `AtRun`.
    """

    def __init__(self, loop: tf.Operation, body: graphs.FunctionGraph, condition: graphs.FunctionGraph) -> None:
        self._initial = list(loop.inputs)
        self._body = body
        self._condition = condition

    def holds(self, tensor: tf.Tensor, for_good: bool = False) -> _Count:
        """Returns the number of iterations before a bool of the condition is False for the first time.

        It is None if it is unknown. With `for_good`, it is also None if the bool may become True again later.
        """
        tensor = _through(tensor)
        kind = tensor.op.type
        if kind in ("LogicalAnd", "LogicalOr"):
            # A loop ends when its condition is False for the first time. For an "or", both operands must be False at
            # the same time: the number is the larger one only if the operand that ends first never becomes True again.
            for_good = for_good or kind == "LogicalOr"
            x, y = (self.holds(operand, for_good) for operand in tensor.op.inputs)
            dominant, neutral, pick = (0, math.inf, min) if kind == "LogicalAnd" else (math.inf, 0, max)
            if dominant in (x, y):
                return dominant
            if neutral in (x, y):
                return y if x == neutral else x
            if isinstance(x, AtRun) and isinstance(y, AtRun) and pick is min:
                return AtRun(x.limits + y.limits)
            return pick(x, y) if isinstance(x, (int, float)) and isinstance(y, (int, float)) else None
        if kind in _COMPARISONS:
            x_line, y_line = (self._line(operand) for operand in tensor.op.inputs)
            if x_line is None or y_line is None:
                return self._at_run(kind, tensor.op.inputs)
            return _iterations(kind, x_line, y_line, for_good)
        value = _constant(tensor)
        return None if value is None else (math.inf if value else 0)

    def _line(self, tensor: tf.Tensor) -> _Line | None:
        tensor = _through(tensor)
        index = _position(tensor, self._condition.inputs)
        if index is None:
            value = _integer(_constant(tensor))
            return None if value is None else (value, 0)
        first, step = _integer(_constant(self._initial[index])), self._step(index)
        return None if first is None or step is None else (first, step)

    def _at_run(self, kind: str, operands: Sequence[tf.Tensor]) -> AtRun | None:
        """Returns the number if a counter increases by 1 up to a limit that is an input of the loop; else None."""
        counter, limit = operands if kind.startswith("Less") else reversed(operands)
        line, index = self._line(counter), _position(_through(limit), self._condition.inputs)
        if line is None or line[1] != 1:
            return None
        if index is None or self._step(index) != 0 or self._initial[index].shape.rank != 0:
            return None
        return AtRun(((index, kind.endswith("Equal") - line[0]),))

    def _step(self, index: int) -> int | None:
        """Returns the number that each iteration adds to a loop variable; None if the change is not constant."""
        variable, result = self._body.inputs[index], _through(self._body.outputs[index])
        if result is variable:
            return 0
        if result.op.type not in ("Add", "AddV2", "Sub"):
            return None
        x, y = (_through(operand) for operand in result.op.inputs)
        if x is variable:
            step = _integer(_constant(y))
            return -step if step is not None and result.op.type == "Sub" else step
        if y is variable and result.op.type != "Sub":
            return _integer(_constant(x))
        return None


def _iterations(kind: str, x: _Line, y: _Line, for_good: bool) -> float | None:
    """Returns the number of iterations before a comparison of two lines is False for the first time."""
    if kind.startswith("Greater"):
        x, y = y, x
    gap, change = y[0] - x[0] + kind.endswith("Equal"), y[1] - x[1]
    if gap <= 0:
        return None if for_good and change > 0 else 0
    return math.inf if change >= 0 else -(gap // change)


def _part(loop: tf.Operation, name: str) -> graphs.FunctionGraph | None:
    graph = getattr(loop, f"_{name}_graph", None)
    return graph_of(loop.get_attr(name).name, loop.graph) if graph is None else graph


def _through(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the tensor before any operations that do not change the value of an integer."""
    while tensor.op.type == "Identity" or (tensor.op.type == "Cast" and tensor.dtype.is_integer):
        tensor = tensor.op.inputs[0]
    return tensor


def _position(tensor: tf.Tensor, tensors: Iterable[tf.Tensor]) -> int | None:
    return next((index for index, candidate in enumerate(tensors) if candidate is tensor), None)


def _integer(value: np.ndarray | None) -> int | None:
    if value is None or np.ndim(value) != 0 or not np.issubdtype(np.asarray(value).dtype, np.integer):
        return None
    return int(value)


def _constant(tensor: tf.Tensor) -> np.ndarray | None:
    """Returns the value of a tensor if it is a constant in its graph and the graphs around it; else None."""
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
    """Records that gradients accumulate at this point of a program. The program is checked when its trace ends."""
    if tf.executing_eagerly():
        raise _no_loop_error((optimizer, num_mini_batches))
    mark = tf.no_op(name=f"{optimizer}_in_loop")
    demand = tf.compat.v1.AttrValue(s=f"{optimizer} {num_mini_batches}".encode())
    graphs.set_attribute(mark, _ATTRIBUTE, demand)
    for graph in graphs.being_traced():
        patches.ACCUMULATION_LOOPS.apply_while(graph, _check)


def _check(graph: graphs.FunctionGraph) -> None:
    """Checks a graph before TensorFlow creates a function from it."""
    # The loop may be in an enclosing function, which is checked later.
    if not graphs.is_function(graphs.enclosing(graph)):
        with graph.as_default():
            for demand in _outside_loops(graph, {}, graph):
                raise _no_loop_error(demand)


def _outside_loops(
    graph: graphs.FunctionGraph, cache: dict[int, list[_Demand]], program: graphs.FunctionGraph
) -> list[_Demand]:
    """Checks the demands in loops of a graph and of the functions that it calls; returns the demands outside of loops.

    A demand (of an optimizer that accumulates) is checked against the innermost loop around it. Only loops of the
    outermost graph `program` can get a check at run time. `cache` has the results of graphs by their ids: each is
    visited once.
    """
    if id(graph) in cache:
        return cache[id(graph)]
    outside = cache[id(graph)] = []
    for operation in list(graph.get_operations()):
        if operation.type in LOOPS:
            body = body_of(operation)
            demands = [] if body is None else _outside_loops(body, cache, program)
            if demands:
                count = trip_count(operation)
                if isinstance(count, AtRun) and graph is program and programs.is_tracing():
                    _check_at_run(demands, operation, count)
                else:
                    _check_count(demands, count)
        elif operation.type == "NoOp":
            if _ATTRIBUTE in operation.node_def.attr:
                optimizer, number = operation.get_attr(_ATTRIBUTE).decode().split()
                outside.append((optimizer, int(number)))
        else:
            for callee in _callees(operation):
                outside += _outside_loops(callee, cache, program)
    return outside


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
            raise _failed(f"{iterations}".join(_message_of_multiple(demand)))
        raise _failed(
            f"{_demand_text(demand)} in a loop whose number of iterations is not known when the program is traced: some"
            " gradients would never be applied. Use a number of iterations that is a Python int, a constant or an argument"
            " of the program, and no `break`"
        )


def _check_at_run(demands: list[_Demand], loop: tf.Operation, count: AtRun) -> None:
    """Adds a check of the number of iterations to the program. The loop's limit depends on the check, which thus runs first."""
    with tf.control_dependencies(None), tf.device(loop.device):
        limits = [tf.cast(loop.inputs[index], tf.int64) + added for index, added in count.limits]
        iterations = tf.maximum(functools.reduce(tf.minimum, limits), 0)
        checked = iterations
        for demand in demands:
            prefix, suffix = _message_of_multiple(demand)
            checked = ops.ipu_micro_batches(
                checked, multiple=demand[1], least=0, largest=tf.int64.max, before=prefix, after=suffix
            )
        # Adds `checked - iterations`, which is 0, so that the loop waits for the check. `checked` itself cannot replace the
        # limit: the limit of a loop without iterations may be negative.
        index, _ = count.limits[0]
        limit = loop.inputs[index]
        graphs.replace_input(loop, index, limit + tf.cast(checked - iterations, limit.dtype))


def _demand_text(demand: _Demand) -> str:
    optimizer, number = demand
    return f"`{optimizer}` accumulates the gradients of `num_mini_batches={number}` mini-batches"


def _message_of_multiple(demand: _Demand) -> tuple[str, str]:
    """Returns the error of a number of iterations that is not a multiple: the texts before and after the number."""
    return (
        f"{_demand_text(demand)} in a loop of ",
        " iterations, which is not a multiple of it: some gradients would never be applied. Make it a multiple",
    )


def _no_loop_error(demand: _Demand) -> tf.errors.FailedPreconditionError:
    return _failed(
        f"{_demand_text(demand)}, but is not inside a training loop of a program. Apply gradients in the body of a loop over"
        " `tf.range`, or of `loops.repeat`"
    )


def _failed(message: str) -> tf.errors.FailedPreconditionError:
    return tf.errors.FailedPreconditionError(None, None, message)
