"""From a `tf.function` and arguments to a compiled program and its flat inputs, and its execution."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tensorflow_ipu import _upcalls
from tensorflow_ipu._base import environment, garbage, progress
from tensorflow_ipu._base.types import Nested
from tensorflow_ipu._tensorflow import functions, op_errors, patches
from tensorflow_ipu._tensorflow.functions import ConcreteFunction, Function
from tensorflow_ipu.programs import (
    _floating_point,
    _gradients,
    _host_kernels,
    _replicated,
    _trace_context,
)
from tensorflow_ipu.programs.diagnostics import retracing, uncompilable

_MUST_COMPILE = "_XlaMustCompile"

# A program and its flat inputs, without those that it captured.
Prepared = tuple[ConcreteFunction, list[tf.Tensor]]


class Target(NamedTuple):
    """What a program is traced for: another one needs another trace."""

    ipus: int | None
    host_kernels: bool
    floating_point: _floating_point.FloatingPoint = _floating_point.PLAIN


# What is replaced while a program is traced, with what makes the replacements; `_upcalls` has what higher layers replace.
_REPLACED: list[tuple[patches.Patch, patches.Make]] = [
    (patches.OPERATIONS, _host_kernels.marking),
    (patches.CONVOLUTION_GRADIENT, _host_kernels.convolution_gradient),
    (patches.CUSTOM_GRADIENTS, _gradients.registering),
    (patches.GRAPH_RANGES, _trace_context.finish),
    (patches.FUNCTION_CALLS, _trace_context.calling),
]


@contextlib.contextmanager
def tracing_program(
    ipus: int | None,
    host_kernels: bool | None = None,
    placed: bool = True,
    floating_point: _floating_point.FloatingPoint = _floating_point.PLAIN,
) -> Iterator[None]:
    """A block that traces a program; one inside of another is part of that program."""
    if _trace_context.is_tracing():
        yield
        return
    if host_kernels is None:
        host_kernels = environment.host_kernels()
    with (
        patches.all_applied([*_REPLACED, *_upcalls.replaced_in_traces()]),
        _trace_context.of_program(ipus, host_kernels, placed, floating_point),
    ):
        yield


def is_graph_function(fn: object) -> bool:
    """Whether `fn` is a `tf.function` or a concrete function, which alone can become a program."""
    return isinstance(fn, (Function, ConcreteFunction))


def compiled(fn: Callable[..., Nested] | Function | ConcreteFunction) -> Function | ConcreteFunction:
    """The function itself if it is compiled, else its compiled copy."""
    if isinstance(fn, Function):
        if functions.is_compiled(fn):
            return fn
    elif isinstance(fn, ConcreteFunction):
        attributes = fn.function_def.attr
        # Asked for first: to read an attribute that a protobuf's map does not have adds an empty one.
        if _MUST_COMPILE in attributes and attributes[_MUST_COMPILE].b:
            return fn
    else:
        return tf.function(fn, jit_compile=True)
    copies = vars(fn)
    # Threads that make the first call at the same time use the same copy, which may make variables.
    return copies.get("_ipu_compiled") or copies.setdefault("_ipu_compiled", _make_jitted(fn))


def _make_jitted(fn: Function | ConcreteFunction) -> Function:
    """Makes the compiled copy of a function that the user does not compile."""
    if isinstance(fn, Function):
        return functions.compiled_copy(fn)
    reference = weakref.ref(fn)  # The function has its copy, and is to end without the garbage collector.

    def call_it(*args: Any, **kwargs: Any) -> Any:
        concrete = reference()
        assert concrete is not None  # It is what is being run.
        return concrete(*args, **kwargs)

    return tf.function(call_it, jit_compile=True, autograph=False)


def find(
    fn: Callable[..., Nested] | Function | ConcreteFunction,
    args: Sequence[Nested],
    kwargs: Mapping[str, Nested],
    target: Target,
) -> Prepared | None:
    """Finds the program of `fn` for these arguments, on the device and in the kind of context that it was traced in."""
    function = compiled(fn)
    if isinstance(function, ConcreteFunction):
        return function, functions.flat_inputs_of_call(function, args, kwargs)
    config = functions.tracing_options(function)
    if config is None:
        return None
    bound = functions.bound_arguments(function, args, kwargs)
    program = functions.known_trace(bound, _options(function, config, target))
    return None if program is None else (program, functions.flat_inputs(program, bound))


def trace(
    fn: Callable[..., Nested] | Function | ConcreteFunction,
    args: Sequence[Nested],
    kwargs: Mapping[str, Nested],
    target: Target,
) -> Prepared:
    """Finds or traces the program of `fn` for these arguments, without running it."""
    function = compiled(fn)
    if isinstance(function, ConcreteFunction):
        prepared = find(function, args, kwargs, target)
        assert prepared is not None
        return prepared
    begin = time.monotonic_ns()
    known = set(map(id, functions.traces_of(function)))
    with (
        progress.of(f"tracing `{retracing.name_of(function)}`"),
        garbage.paused(),
        tracing_program(target.ipus, target.host_kernels, floating_point=target.floating_point),
    ):
        with functions.lock_of(function):  # Another thread may be at the first call, and make the variables.
            if functions.tracing_options(function) is None:
                function._ipu_first = target  # pyright: ignore[reportAttributeAccessIssue]
                try:
                    function.get_concrete_function(*args, **kwargs)
                except BaseException:  # A plain call may be the first that is traced.
                    function._ipu_first = function._ipu_options = None  # pyright: ignore[reportAttributeAccessIssue]
                    raise
            created = functions.has_made_variables(function)
        bound = functions.bound_arguments(function, args, kwargs)
        options = _options(function, functions.tracing_options(function), target)
        program = functions.traced(bound.args, bound.kwargs, options)
        if functions.has_made_variables(function) and not created:
            raise ValueError(
                "the function made variables on a call that is not its first; make them once, outside of it or on the"
                " first call alone"
            )
    if id(program) not in known:
        retracing.note(function, program, target, begin)
    return program, functions.flat_inputs(program, bound)


def _options(function: Function, config: Any, target: Target) -> Any:
    """The options by which the program for a target is traced and found."""
    # Kept by the function, since what TensorFlow traces by may lead back to it, and would keep a weak table's key alive.
    known = getattr(function, "_ipu_options", None)
    if known is None or known[0] is not config:
        known = function._ipu_options = (config, {})  # pyright: ignore[reportAttributeAccessIssue]
    options = known[1].get(target)
    if options is None:
        # TensorFlow's own key is for the target that the function was first traced for. There is none if a plain call was
        # the first, even one that failed.
        first = getattr(function, "_ipu_first", None)
        options = known[1][target] = config if target == first else functions.with_target(config, target)
    return options


def call(program: ConcreteFunction, inputs: list[tf.Tensor], captured: list[tf.Tensor], ordinal: int) -> Nested:
    """Executes a program, or puts its execution into the graph. The caller has entered the device."""
    try:
        if _replicated.wanted(program, ordinal, tf.executing_eagerly()):
            return _replicated.call(program, inputs, captured)
        return functions.execute(program, inputs, captured)
    except tf.errors.InvalidArgumentError as exc:
        uncompilable.raise_explained(program, exc)
    except tf.errors.UnimplementedError as exc:
        resources = [id(value) for value in (*inputs, *captured) if value.dtype == tf.resource]
        if len(set(resources)) == len(resources):
            raise op_errors.told_plainly(exc) from None
        raise ValueError(
            "the program gets the same queue twice: in two arguments, or in an argument and as one that it captures. Pass"
            " it once, or capture it alone"
        ) from exc
    except tf.errors.OpError as exc:
        raise op_errors.told_plainly(exc) from None
