"""How often a loop runs, read from its condition, its body and what it begins with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorflow_ipu.machine._hlo import Computation, HloInstruction

if TYPE_CHECKING:
    from collections.abc import Callable

# They pass on a scalar as it is.
_PASSING = frozenset({"copy", "reshape", "bitcast", "convert", "broadcast", "opt-barrier"})
_MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "EQ": "EQ", "NE": "NE"}


@dataclass(frozen=True, eq=False)
class Frame:
    """A call of a computation: where the values of its parameters come from.

    Attributes:
      computation: What is called.
      arguments: The operands of the call, by number; None for the program itself.
      caller: The frame that they belong to.
      loop: The `while` of which this is the body or the condition; its parameter then differs by iteration.
    """

    computation: Computation
    arguments: tuple[HloInstruction, ...] | None = None
    caller: Frame | None = None
    loop: HloInstruction | None = None

    def enter(self, operation: HloInstruction, computation: Computation) -> Frame:
        """The frame of a computation that an operation of this frame calls."""
        loop = operation if operation.opcode == "while" else None
        return Frame(computation, operation.operands, self, loop)


# Where a value comes from: an operation, the frame that it is in, and which element of its tuple, if it is one.
_Origin = tuple[HloInstruction, Frame, int | None]


def _origin(operation: HloInstruction, frame: Frame) -> _Origin:
    """Follows a value through tuples, calls and what passes scalars on, to where it is made."""
    while True:
        if operation.opcode == "get-tuple-element":
            source, inner, element = _origin(operation.operands[0], frame)
            if element is not None or source.opcode != "tuple":
                return source, inner, operation.number if element is None else None
            operation, frame = source.operands[operation.number], inner
        elif operation.opcode in _PASSING:
            operation = operation.operands[0]
        elif operation.opcode == "call":
            frame = frame.enter(operation, operation.called[0])
            operation = frame.computation.root
        elif operation.opcode == "parameter" and frame.loop is None and frame.arguments is not None:
            assert frame.caller is not None
            operation, frame = frame.arguments[operation.number], frame.caller
        else:
            return operation, frame, None


def _constant(operation: HloInstruction, frame: Frame) -> int | None:
    """The value of a whole number, where the program says it."""
    source, frame, element = _origin(operation, frame)
    if source.opcode == "constant":
        return source.constant
    if element is not None:
        return _constant_of_loop(source, frame, element)
    if source.opcode in _FOLDED and len(source.operands) == 2:
        left = _constant(source.operands[0], frame)
        right = _constant(source.operands[1], frame)
        return None if left is None or right is None else _FOLDED[source.opcode](left, right)
    return None


_FOLDED: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "minimum": min,
    "maximum": max,
}


def _constant_of_loop(source: HloInstruction, frame: Frame, element: int) -> int | None:
    """The value of an element that a loop carries and never changes, or after the loop, that it counts in."""
    if source.opcode == "while":  # After the loop.
        body = frame.enter(source, source.called[0])
        return _begin(body, element) if _is_kept(body, element) else _end(source, frame, body, element)
    if source.opcode == "parameter" and frame.loop is not None:
        body = Frame(frame.loop.called[0], frame.arguments, frame.caller, frame.loop)
        return _begin(body, element) if _is_kept(body, element) else None
    return None


def _end(loop: HloInstruction, frame: Frame, body: Frame, element: int) -> int | None:
    """What a loop has counted in an element: by which the loop of its gradients goes back."""
    begin, step, trips = _begin(body, element), _step(body, element), trip_count(loop, frame)
    return None if begin is None or step is None or trips is None else begin + step * trips


def _begin(body: Frame, element: int) -> int | None:
    """What an element that a loop carries is before the first iteration."""
    assert body.arguments is not None
    assert body.caller is not None
    source, frame, nested = _origin(body.arguments[0], body.caller)
    if nested is not None:
        return None
    if source.opcode == "tuple":
        return _constant(source.operands[element], frame)
    return _constant_of_loop(source, frame, element)


def _root_element(body: Frame, element: int) -> tuple[HloInstruction, Frame] | None:
    """What an iteration makes of an element that the loop carries."""
    source, frame, nested = _origin(body.computation.root, body)
    if source.opcode != "tuple" or nested is not None:
        return None
    return source.operands[element], frame


def _is_kept(body: Frame, element: int) -> bool:
    root = _root_element(body, element)
    if root is None:
        return False
    source, frame, at = _origin(*root)
    return source.opcode == "parameter" and frame.loop is body.loop and at == element


def _step(body: Frame, element: int) -> int | None:
    """By how much an iteration increases an element that the loop carries; None where that is not known."""
    root = _root_element(body, element)
    if root is None:
        return None
    source, frame, at = _origin(*root)
    if source.opcode not in ("add", "subtract") or at is not None:
        return None
    for one, other in (source.operands, source.operands[::-1]):
        carried, inner, at = _origin(one, frame)
        if carried.opcode == "parameter" and inner.loop is body.loop and at == element:
            step = _constant(other, frame)
            if source.opcode == "subtract":
                return -step if step is not None and one is source.operands[0] else None
            return step
    return None


def trip_count(loop: HloInstruction, frame: Frame) -> int | None:
    """How often a `while` runs its body; at most, where a part of its condition is not known before it runs.

    Args:
      loop: The operation.
      frame: The frame that it is in.

    Returns:
      The count; None where only running the program tells.
    """
    body, condition = (frame.enter(loop, called) for called in loop.called)
    return _bound(condition.computation.root, condition, body)


def _bound(operation: HloInstruction, condition: Frame, body: Frame) -> int | None:
    """After how many iterations this part of a condition becomes false, if it is known."""
    source, frame, element = _origin(operation, condition)
    if element is not None:
        return None
    if source.opcode == "and":
        bounds = [_bound(each, frame, body) for each in source.operands]
        known = [bound for bound in bounds if bound is not None]
        return min(known) if known else None
    if source.opcode == "constant" and source.constant == 0:
        return 0
    if source.opcode != "compare":
        return None
    left, right = source.operands
    found = _compared(left, source.direction, right, frame, body)
    return _compared(right, _MIRRORED[source.direction], left, frame, body) if found is None else found


def _compared(counter: HloInstruction, direction: str, limit: HloInstruction, frame: Frame, body: Frame) -> int | None:
    source, inner, element = _origin(counter, frame)
    if source.opcode != "parameter" or element is None or inner.loop is not body.loop:
        return None
    begin, step, end = _begin(body, element), _step(body, element), _constant(limit, frame)
    if begin is None or not step or end is None:
        return None
    if direction in ("GT", "GE"):  # Counts down: the same, mirrored.
        begin, step, end, direction = -begin, -step, -end, _MIRRORED[direction]
    if direction == "NE":
        return (end - begin) // step if (end - begin) % step == 0 and (end - begin) // step >= 0 else None
    if direction not in ("LT", "LE") or step < 0:
        return None
    return max(0, math.ceil((end - begin + (direction == "LE")) / step))
