"""The reason why a function was traced again, and the warning where only shapes or numbers differ each time."""

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

# A function that is traced so often, for shapes or for Python numbers that differ, is named in a warning. Some functions have
# a few numbers by design, such as an axis.
_SHAPES = 3
_NUMBERS = 5


class _Known(NamedTuple):
    name: str
    leaves: dict[str, Leaf]
    target: Target


_KNOWN = "_ipu_traced_for"  # The attribute of a program that has what it was traced for.

# The function that was last made of a piece of code, by the code's `id`: a script may make one anew each time. The oldest
# entries go first.
_made_of: collections.OrderedDict[int, tuple[weakref.ref[types.CodeType], weakref.ref[Function]]] = (
    collections.OrderedDict()
)
_MOST_CODES = 1000


def note(function: Function, program: ConcreteFunction, target: Target, begin: int) -> None:
    """Notes a trace that has just ended and its reason; warns if only shapes or numbers have differed before."""
    if hasattr(program, _KNOWN):
        return
    duration = tracepoints.trace_times.add(begin)
    new = _Known(name_of(function), functions.leaves_of(program), target)
    # Those without variables to make are in two tables of TensorFlow's.
    traces = {id(trace): trace for trace in functions.traces_of(function)}
    earlier = [getattr(trace, _KNOWN) for trace in traces.values() if hasattr(trace, _KNOWN)]
    reason = _reason(function, new, earlier)
    setattr(program, _KNOWN, new)
    tracepoints.traces.append(tracepoints.Trace(time.monotonic_ns(), duration, _described(function), reason))
    tracepoints.mark(tracepoints.PROGRAMS, f"trace of {_described(function)}", begin)
    _logger.info("traced `%s` in %.3f s: %s", _described(function), duration / 1e9, reason)
    if hasattr(function, "_ipu_warned"):
        return
    for is_alike, most, varying, remedy in (
        (_is_same_but_for_sizes, _SHAPES, "shapes", _ONE_SHAPE),
        (_is_same_but_for_number, _NUMBERS, "Python numbers", _TENSOR),
    ):
        others = [one for one in earlier if one.target == target and _differ(one.leaves, new.leaves, is_alike)]
        found = {frozenset(known.leaves.items()) for known in others}
        if len(found) >= most - 1:
            function._ipu_warned = True  # pyright: ignore[reportAttributeAccessIssue]
            _warn(_described(function), len(found) + 1, varying, differences(others[-1].leaves, new.leaves), remedy)


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
    """The data that the programs of one step were made for, which TensorFlow knows as many functions."""

    def __init__(self) -> None:
        self._known: list[dict[str, Leaf]] = []
        self._warned = False

    def note(self, step: str, spec: object) -> None:
        """Notes that a program is made; warns where only shapes have differed twice before."""
        new = functions.leaves_of_spec("data", spec)
        if new in self._known:
            return
        others = [known for known in self._known if _differ(known, new, _is_same_but_for_sizes)]
        self._known.append(new)
        if len(others) >= _SHAPES - 1 and not self._warned:
            self._warned = True
            _warn(step, len(others) + 1, "shapes", differences(others[-1], new), _ONE_SHAPE)


def differences(old: dict[str, Leaf], new: dict[str, Leaf], most: int = 4) -> str:
    """Returns a text of what differs between the arguments of two traces."""
    words = [word for path in dict.fromkeys([*old, *new]) if (word := _difference(path, old.get(path), new.get(path)))]
    return "; ".join(words[:most]) + (f"; and {len(words) - most} more" if len(words) > most else "")


def _difference(path: str, old: Leaf | None, new: Leaf | None) -> str:
    if old == new:
        return ""
    if old is None or new is None:
        return f"`{path}` is {'new' if old is None else 'gone'}"
    if old.kind != new.kind:
        return f"`{path}`: {_what(old)} became {_what(new)}"
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


def _what(leaf: Leaf) -> str:
    if leaf.kind == "object":
        return f"an object of type `{leaf.dtype}`"
    return f"{leaf.kind} {leaf.text:.40}"


def _differ(old: dict[str, Leaf], new: dict[str, Leaf], is_alike: Callable[[Leaf, Leaf], bool]) -> bool:
    """Returns True if two traces differ, and all parts of their arguments are alike."""
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
    """Counts what differs: for a tensor, its shape and its type count by themselves."""
    nothing = functions.Leaf("", "")
    pairs = [(old.get(path, nothing), new.get(path, nothing)) for path in {*old, *new}]
    return sum(
        (a.shape != b.shape) + ((a.kind, a.dtype) != (b.kind, b.dtype) or a.shape == b.shape)
        for a, b in pairs
        if a != b
    )


def _reason(function: Function, new: _Known, earlier: Sequence[_Known]) -> str:
    if not earlier:
        return _reason_of_first(function)
    # The one that is the most like it, and of those the latest.
    nearest = min(reversed(earlier), key=lambda known: _distance(known.leaves, new.leaves))
    words = [differences(nearest.leaves, new.leaves)]
    if nearest.target != new.target:
        before, now = nearest.target, new.target
        if before.ipus != now.ipus:
            words.append(f"the device has {now.ipus or 'any number of'} IPUs, and had {before.ipus or 'any number of'}")
        if before.host_kernels != now.host_kernels:
            words.append(f"kernels of the host {'may' if now.host_kernels else 'may not'} compute its layers")
        if before.floating_point != now.floating_point:
            words.append(f"numbers are to be `{now.floating_point.text()}`, and were `{before.floating_point.text()}`")
    return "; ".join(filter(None, words)) or "it was called in another context: another scope, graph or device"


def _reason_of_first(function: Function) -> str:
    code = getattr(inspect.unwrap(function.python_function), "__code__", None)
    if code is None:
        return "its first call"
    known_code, known = _made_of.pop(id(code), (None, None))
    _made_of[id(code)] = weakref.ref(code), weakref.ref(function)
    if len(_made_of) > _MOST_CODES:
        _made_of.popitem(last=False)
    if known is None or known_code is None or known_code() is not code or known() is function:
        return "its first call"
    return (
        "another function of the same code was traced before, and each has programs of its own; where it is made in a loop,"
        " make it once"
    )


def name_of(function: Function) -> str:
    """Returns the name of the Python function, or the function's own, such as a model's."""
    return getattr(function, "__name__", _python_name(inspect.unwrap(function.python_function)))


def name_of_trace(program: ConcreteFunction) -> str | None:
    """Returns the name of the function that was traced, or None if the user traced it."""
    known = getattr(program, _KNOWN, None)
    return None if known is None else known.name


def _python_name(made_of: Any) -> str:
    return getattr(made_of, "__name__", type(made_of).__name__)


def _described(function: Function) -> str:
    """Returns the function's name with its file and line, or a name of its own, such as a model's."""
    name, made_of = name_of(function), inspect.unwrap(function.python_function)
    code = getattr(made_of, "__code__", None)
    if code is None or name != _python_name(made_of):
        return name
    return f"{name} ({code.co_filename.rpartition('/')[2]}:{code.co_firstlineno})"
