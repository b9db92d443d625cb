"""The report on a program of `strategy.run`: finds its optimizers and infeeds, and predicts its time and memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tensorflow_ipu import optimizers, pipelining, programs
from tensorflow_ipu._base.types import Nested
from tensorflow_ipu.analysis import machine
from tensorflow_ipu.feeds import IPUInfeedQueue, IPUIterator
from tensorflow_ipu.optimizers import AccumulationOptions
from tensorflow_ipu.optimizers.accumulation import accumulators_of, bytes_of, state_of
from tensorflow_ipu.programs.diagnostics import faults

# Optimizers and infeeds are found through at most this number of references, such as from a program's function to the
# step of its `loops.repeat`.
_DEEPEST = 4


def kept_by(fn: object, arguments: Iterable[object], captured: Iterable[Any], replicas: int) -> machine.Kept:
    """Returns the sizes of the slots and accumulators of a program's optimizers."""
    handles = {id(tensor) for tensor in captured}
    sizes = machine.Kept()
    for optimizer in filter(_is_optimizer, _reached((getattr(fn, "python_function", fn), *arguments))):
        used = [variable for variable in state_of(optimizer) if id(variable.handle) in handles]
        sums = [variable for variable in accumulators_of(optimizer) if id(variable.handle) in handles]
        if not used and not sums:
            continue
        memory = optimizers.update_memory(optimizer, (), replicas)
        unsharded = optimizers.update_memory(optimizer, ())
        options = getattr(optimizer, "options", None)
        steps = options.num_mini_batches if isinstance(options, AccumulationOptions) else 1
        sizes = machine.Kept(
            state=sizes.state + unsharded.state_on_chip + unsharded.state_off_chip,
            on_chip=sizes.on_chip + memory.state_on_chip,
            off_chip=sizes.off_chip + memory.state_off_chip,
            accumulated=sizes.accumulated + sum(map(bytes_of, sums)),
            steps_per_update=max(sizes.steps_per_update, steps),
        )
    return sizes


def prefetch_of(fn: object, arguments: Iterable[object]) -> int | None:
    """Returns the largest `prefetch_depth` of the infeeds that a program may read; None if none is found."""
    values = _reached((getattr(fn, "python_function", fn), *arguments))
    queues = (value._infeed_queue if isinstance(value, IPUIterator) else value for value in values)
    depths = (queue.prefetch_depth for queue in queues if isinstance(queue, IPUInfeedQueue))
    return max((depth for depth in depths if depth is not None), default=None)


def _is_optimizer(value: Any) -> bool:
    return hasattr(value, "apply_gradients") and not isinstance(value, type)


def _reached(roots: Iterable[object]) -> Iterator[Any]:
    """Yields all objects that can be reached from the roots, each once, without optimizers that another one wraps."""
    todo = [(root, 0) for root in roots]
    seen: set[int] = set()
    while todo:
        value, depth = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if _is_optimizer(value):
            # The outer optimizer reports the slots of the optimizers that it wraps.
            wrapped = value
            while (wrapped := getattr(wrapped, "inner_optimizer", None)) is not None:
                seen.add(id(wrapped))
        elif depth < _DEEPEST:
            todo += [(referenced, depth + 1) for referenced in _references(value)]


def _references(value: Any) -> list[Any]:
    """Returns the variables that a function uses, the items of a list or dictionary, or the optimizer of a model."""
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


def report_of(
    function: Callable[..., Nested],
    arguments: Sequence[Nested],
    program: programs.Program,
    ipus: int,
    setting: machine.Setting,
    trip_counts: Mapping[str, int] | None,
    kept: machine.Kept | None,
) -> machine.Report:
    """Predicts the time and memory of a program, or of the pipeline in it, on a machine."""
    traced = program.function
    name = getattr(function, "__name__", traced.name)
    per_replica = program.ipus_of_replica
    pipelines = pipelining.pipelines_of(traced)
    if len(pipelines) == 1:
        return pipelining.report_of_pipeline(
            pipelines[0],
            setting.system,
            program=name,
            replicas=max(1, ipus // per_replica),
            prefetch=prefetch_of(function, arguments),
            trip_counts=trip_counts,
        )
    if pipelines:
        raise NotImplementedError(
            f"the program has {len(pipelines)} pipelines, but a report supports only one pipeline or none"
        )
    faults.refuse_shapes_of_data(traced, program.inputs, program.device)
    report = machine.report_of(
        programs.hlo(traced, program.inputs, program.device),
        setting.system,
        program=name,
        replicas=max(1, ipus // per_replica),
        proportion=setting.proportion,
        trip_counts=trip_counts,
        lines=programs.user_lines(traced),
        prefetch=prefetch_of(function, arguments),
        ipus=per_replica,
        shards=programs.placed_by_name(traced),
    )
    if per_replica > 1:
        return report
    if kept is None:
        kept = kept_by(function, arguments, traced.captured_inputs, ipus)
    return machine.told_apart(report, kept)
