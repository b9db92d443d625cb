"""Finds the reason why a function was traced again, and warns if only shapes or Python scalars differ each time."""

from __future__ import annotations

import collections
import inspect
import logging
import time
import types
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorflow_ipu._base import tracepoints
from tensorflow_ipu._tensorflow import functions
from tensorflow_ipu.errors import RecompilationWarning
from tensorflow_ipu.programs.diagnostics import tracebacks

if TYPE_CHECKING:
    from tensorflow_ipu._tensorflow.functions import ConcreteFunction, Function, Leaf
    from tensorflow_ipu.programs._trace_context import Target

_logger = logging.getLogger(__name__)

# The number of traces with different shapes, or different Python numbers, that causes a warning. The second limit is
# higher because some functions need a few numbers by design, such as an axis.
_SHAPES = 3
_NUMBERS = 5


class _Trace(NamedTuple):
    name: str
    leaves: dict[str, Leaf]
    target: Target


_TRACE = "_ipu_traced_for"  # The attribute of a concrete function that holds its `_Trace`.

# The latest function of each piece of code, by the code's `id`. It detects scripts that make the same function
# repeatedly. The oldest entries are removed first.
_latest_functions: collections.OrderedDict[int, tuple[weakref.ref[types.CodeType], weakref.ref[Function]]] = (
    collections.OrderedDict()
)
_MAX_CODES = 1000


def note(function: Function, program: ConcreteFunction, target: Target, begin: int) -> None:
    """Records a new trace and its reason; warns if only shapes or only Python scalars have differed so far."""
    if hasattr(program, _TRACE):
        return
    duration = tracepoints.trace_times.add(begin)
    new = _Trace(name_of(function), functions.leaves_of(program), target)
    # TensorFlow lists a trace twice if it creates no variables.
    traces = {id(trace): trace for trace in functions.traces_of(function)}
    earlier = [getattr(trace, _TRACE) for trace in traces.values() if hasattr(trace, _TRACE)]
    reason = _reason(function, new, earlier)
    setattr(program, _TRACE, new)
    tracepoints.traces.append(tracepoints.Trace(time.monotonic_ns(), duration, _described(function), reason))
    tracepoints.mark(tracepoints.PROGRAMS, f"trace of {_described(function)}", begin)
    _logger.info("traced `%s` in %.3f s: %s", _described(function), duration / 1e9, reason)
    if hasattr(function, "_ipu_warned"):
        return
    for is_alike, limit, varying, remedy in (
        (_is_same_but_for_sizes, _SHAPES, "shapes", _ONE_SHAPE),
        (_is_same_but_for_number, _NUMBERS, "Python numbers", _TENSOR),
    ):
        similar = [trace for trace in earlier if trace.target == target and _differ(trace.leaves, new.leaves, is_alike)]
        distinct = {frozenset(trace.leaves.items()) for trace in similar}
        if len(distinct) >= limit - 1:
            function._ipu_warned = True  # pyright: ignore[reportAttributeAccessIssue]
            _warn(_described(function), len(distinct) + 1, varying, differences(similar[-1].leaves, new.leaves), remedy)


_ONE_SHAPE = (
    "Give it one shape: pad what is shorter, or leave the last, smaller batch out (`dataset.batch(size,"
    " drop_remainder=True)`). `tf.function(reduce_retracing=True)` saves traces, though a program is still compiled for each"
    " shape"
)
_TENSOR = "Make it a tensor, and all calls share a program: pass `tf.constant(...)`, or keep a `tf.Variable`"


def _warn(function: str, count: int, varying: str, difference: str, remedy: str) -> None:
    warnings.warn(
        f"`{function}` was traced for {count} different {varying}, and each is a program that XLA compiles. The latest:"
        f" {difference}. {remedy}. `tensorflow_ipu.metrics_report()` lists all traces",
        RecompilationWarning,
        stacklevel=tracebacks.stack_level(),
    )


class ShapesOfData:
    """The specs of the data that one step was compiled for. Each spec has its own program and `tf.function`."""

    def __init__(self) -> None:
        self._specs: list[dict[str, Leaf]] = []
        self._warned = False

    def note(self, step: str, spec: object) -> None:
        """Records the spec of a new program; warns if it is the third that differs in shapes only."""
        new = functions.leaves_of_spec("data", spec)
        if new in self._specs:
            return
        similar = [earlier for earlier in self._specs if _differ(earlier, new, _is_same_but_for_sizes)]
        self._specs.append(new)
        if len(similar) >= _SHAPES - 1 and not self._warned:
            self._warned = True
            _warn(step, len(similar) + 1, "shapes", differences(similar[-1], new), _ONE_SHAPE)


def differences(old: dict[str, Leaf], new: dict[str, Leaf], limit: int = 4) -> str:
    """Describes the differences between the arguments of two traces: "`x`: shape (4,) became (5,)"."""
    clauses = [
        clause for path in dict.fromkeys([*old, *new]) if (clause := _difference(path, old.get(path), new.get(path)))
    ]
    return "; ".join(clauses[:limit]) + (f"; and {len(clauses) - limit} more" if len(clauses) > limit else "")


def _difference(path: str, old: Leaf | None, new: Leaf | None) -> str:
    if old == new:
        return ""
    if old is None or new is None:
        return f"`{path}` is {'new' if old is None else 'gone'}"
    if old.kind != new.kind:
        return f"`{path}`: {_kind(old)} became {_kind(new)}"
    if old.kind == "tensor":
        shape = f"shape {_shape(old)} became {_shape(new)}" if old.shape != new.shape else ""
        dtype = f"type {old.dtype} became {new.dtype}" if old.dtype != new.dtype else ""
        return f"`{path}`: {' and '.join(filter(None, (shape, dtype)))}"
    if old.kind == "value":
        return f"`{path}`: the Python value {old.text:.40} became {new.text:.40}; pass a tensor if it changes often"
    if old.kind == "object":
        return f"`{path}`: another Python object, of type `{new.dtype}`; it is compared by identity"
    return f"`{path}`: {old.text:.60} became {new.text:.60}"


def _shape(leaf: Leaf) -> str:
    return "of any rank" if leaf.shape is None else str(leaf.shape)


def _kind(leaf: Leaf) -> str:
    if leaf.kind == "object":
        return f"an object of type `{leaf.dtype}`"
    return f"{leaf.kind} {leaf.text:.40}"


def _differ(old: dict[str, Leaf], new: dict[str, Leaf], is_alike: Callable[[Leaf, Leaf], bool]) -> bool:
    """Returns True if two traces differ, but `is_alike` is true of all parts of their arguments."""
    if old == new or old.keys() != new.keys():
        return False
    return all(is_alike(leaf, new[path]) for path, leaf in old.items())


def _is_same_but_for_sizes(old: Leaf, new: Leaf) -> bool:
    if old.shape is None or new.shape is None:
        return old == new
    return (old.kind, old.dtype, len(old.shape)) == (new.kind, new.dtype, len(new.shape))


def _is_same_but_for_number(old: Leaf, new: Leaf) -> bool:
    return old == new or all(leaf.kind == "value" and leaf.dtype in ("int", "float") for leaf in (old, new))


def _distance(old: dict[str, Leaf], new: dict[str, Leaf]) -> int:
    """Returns the number of differences; the shape and the type of a tensor count separately."""
    missing = functions.Leaf("", "")
    pairs = [(old.get(path, missing), new.get(path, missing)) for path in {*old, *new}]
    return sum(
        (a.shape != b.shape) + ((a.kind, a.dtype) != (b.kind, b.dtype) or a.shape == b.shape)
        for a, b in pairs
        if a != b
    )


def _reason(function: Function, new: _Trace, earlier: Sequence[_Trace]) -> str:
    if not earlier:
        return _reason_of_first(function)
    # The most similar trace is compared, and of equally similar traces the latest.
    nearest = min(reversed(earlier), key=lambda trace: _distance(trace.leaves, new.leaves))
    reasons = [differences(nearest.leaves, new.leaves)]
    old_target, target = nearest.target, new.target
    if old_target.ipus != target.ipus:
        reasons.append(
            f"the device has {target.ipus or 'any number of'} IPUs, and had {old_target.ipus or 'any number of'}"
        )
    if old_target.host_kernels != target.host_kernels:
        reasons.append(f"host kernels {'may' if target.host_kernels else 'may not'} compute its layers")
    if old_target.floating_point != target.floating_point:
        options, old_options = target.floating_point.text(), old_target.floating_point.text()
        reasons.append(f"the floating-point options are `{options}`, and were `{old_options}`")
    return "; ".join(filter(None, reasons)) or "it was called in another context: another scope, graph or device"


def _reason_of_first(function: Function) -> str:
    code = getattr(inspect.unwrap(function.python_function), "__code__", None)
    if code is None:
        return "its first call"
    latest_code, latest = _latest_functions.pop(id(code), (None, None))
    _latest_functions[id(code)] = weakref.ref(code), weakref.ref(function)
    if len(_latest_functions) > _MAX_CODES:
        _latest_functions.popitem(last=False)
    if latest is None or latest_code is None or latest_code() is not code or latest() is function:
        return "its first call"
    return (
        "another function of the same code was traced before, and each has programs of its own; where it is made in a loop,"
        " make it once"
    )


def name_of(function: Function) -> str:
    """Returns the `__name__` that was set on the function, such as a model's, or the name of the Python function."""
    return getattr(function, "__name__", _python_name(inspect.unwrap(function.python_function)))


def name_of_trace(program: ConcreteFunction) -> str | None:
    """Returns the name of the traced function, or None if the user traced it."""
    trace = getattr(program, _TRACE, None)
    return None if trace is None else trace.name


def _python_name(python_function: Any) -> str:
    return getattr(python_function, "__name__", type(python_function).__name__)


def _described(function: Function) -> str:
    """Returns the function's name with its file and line, `step (train.py:12)`, or only a name that was set on it."""
    name, python_function = name_of(function), inspect.unwrap(function.python_function)
    code = getattr(python_function, "__code__", None)
    if code is None or name != _python_name(python_function):
        return name
    return f"{name} ({code.co_filename.rpartition('/')[2]}:{code.co_firstlineno})"
