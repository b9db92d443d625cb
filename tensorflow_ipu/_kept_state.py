"""What the optimizers of a program keep, and how far ahead its infeeds read: found by what its function names."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

from tensorflow_ipu import machine, optimizers
from tensorflow_ipu.feeds import IPUInfeedQueue, IPUIterator
from tensorflow_ipu.optimizers import AccumulationOptions
from tensorflow_ipu.optimizers.parts import accumulators_of, bytes_of, state_of

# So far functions are followed that functions name: a step that a program hands to `loops.repeat`, and what that calls.
_DEEPEST = 4


def kept_by(fn: Any, arguments: Iterable[Any], captured: Iterable[Any], replicas: int) -> machine.Kept:
    """What the optimizers of a program keep."""
    handles = {id(tensor) for tensor in captured}
    kept = machine.Kept()
    for optimizer in _optimizers((getattr(fn, "python_function", fn), *arguments)):
        used = [each for each in state_of(optimizer) if id(each.handle) in handles]
        sums = [each for each in accumulators_of(optimizer) if id(each.handle) in handles]
        if not used and not sums:
            continue
        memory = optimizers.update_memory(optimizer, (), replicas)
        whole = optimizers.update_memory(optimizer, ())
        options = getattr(optimizer, "options", None)
        steps = options.num_mini_batches if isinstance(options, AccumulationOptions) else 1
        kept = machine.Kept(
            state=kept.state + whole.state_on_chip + whole.state_off_chip,
            on_chip=kept.on_chip + memory.state_on_chip,
            off_chip=kept.off_chip + memory.state_off_chip,
            accumulated=kept.accumulated + sum(map(bytes_of, sums)),
            steps_per_update=max(kept.steps_per_update, steps),
        )
    return kept


def prefetch_of(fn: Any, arguments: Iterable[Any]) -> int | None:
    """The most `prefetch_depth` of the infeeds that a program may read; None where none is known."""
    found = _reached((getattr(fn, "python_function", fn), *arguments))
    queues = (each._infeed_queue if isinstance(each, IPUIterator) else each for each in found)
    depths = (queue.prefetch_depth for queue in queues if isinstance(queue, IPUInfeedQueue))
    return max((depth for depth in depths if depth is not None), default=None)


def _optimizers(roots: Iterable[Any]) -> Iterator[Any]:
    """The outermost optimizers that can be reached from these, each once."""
    return (each for each in _reached(roots) if _is_optimizer(each))


def _is_optimizer(value: Any) -> bool:
    return hasattr(value, "apply_gradients") and not isinstance(value, type)


def _reached(roots: Iterable[Any]) -> Iterator[Any]:
    """All that can be reached from these, each once, but for what optimizers wrap."""
    todo = [(root, 0) for root in roots]
    seen: set[int] = set()
    while todo:
        value, depth = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if _is_optimizer(value):
            # What it wraps is its own.
            wrapped = value
            while (wrapped := getattr(wrapped, "inner_optimizer", None)) is not None:
                seen.add(id(wrapped))
        elif depth < _DEEPEST:
            todo += [(each, depth + 1) for each in _named(value)]


def _named(value: Any) -> list[Any]:
    """What a function names, the items of a list, or the optimizer of a model."""
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    value = getattr(value, "python_function", value)
    if inspect.ismethod(value):
        return [value.__self__, value.__func__]
    if inspect.isfunction(value):
        variables = inspect.getclosurevars(value)
        return [*variables.nonlocals.values(), *variables.globals.values()]
    optimizer = getattr(value, "optimizer", None)
    return [] if optimizer is None else [optimizer]
