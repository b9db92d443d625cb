"""How often a loop of a traced program runs: what its graph tells, or by which of its inputs the run knows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import tensorflow as tf

from tensorflow_ipu._tensorflow import graphs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LOOPS = ("While", "StatelessWhile")


class AtRun(NamedTuple):
    """A number of iterations that the run knows: the least of some inputs of the loop, with what is added to each; or 0."""

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
    """The graph of a loop's body."""
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
        """For how many iterations, counted from the first, a bool of the condition is true; None if it is not known.

        With `for_good`, it is not known either where the bool would become true again.
        """
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
        """The number where one counts up by 1 to a limit that the loop is given; see `AtRun`."""
        counter, limit = operands if kind.startswith("Less") else reversed(operands)
        line, at = self._line(counter), _position(_through(limit), self._condition.inputs)
        if line is None or line[1] != 1 or at is None or self._step(at) != 0 or self._initial[at].shape.rank != 0:
            return None
        return AtRun(((at, kind.endswith("Equal") - line[0]),))

    def _step(self, at: int) -> int | None:
        """By how much an iteration changes the carried value at this position."""
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
    """For how many iterations a comparison of two lines holds."""
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
    """The tensor that this one has its value from unchanged."""
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
    """The value of a tensor as an array, if the graphs around say it; else None."""
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
