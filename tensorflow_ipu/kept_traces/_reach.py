"""What a trace can depend on: all that Python reaches from a function and its arguments, as a digest.

Processes that compute the same digest would trace the same program. The search ends at an object that cannot be inspected,
or that may be different each time it is asked: then the trace is not cached.
"""

from __future__ import annotations

import collections
import enum
import functools
import hashlib
import itertools
import sys
import threading
import types
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tensorflow_ipu._tensorflow import functions
from tensorflow_ipu.feeds import IPUInfeedQueue, IPUIterator, IPUOutfeedQueue
from tensorflow_ipu.kept_traces import _code

# How many objects are followed at most: beyond, to trace takes no longer.
_MOST = 100_000


class _Pair(NamedTuple):
    first: None = None


_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented))
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_HEAP_TYPE = 1 << 9  # Of `type.__flags__`: made by a `class` statement, or as one.
_METHODS = (types.MethodType, types.MethodWrapperType)
_BUILTINS = (
    types.BuiltinFunctionType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.GetSetDescriptorType,
)
_SLOTS = (types.MemberDescriptorType, type(vars(_Pair)["first"]))


class NotKept(Exception):  # noqa: N818  (No error: the trace is not kept.)
    """What is reached cannot be looked into; the message says what and where."""


class Reached:
    """What has been reached so far.

    Attributes:
      variables: The variables, in the order in which they were come by.
      feeds: The states' owners of queues, likewise.
      tensors: The tensors of eager execution, likewise.
      optimizers: The optimizers of Keras, likewise.
    """

    def __init__(self, skipped: Iterable[Any] = ()) -> None:
        """Begins with nothing.

        Args:
          skipped: Objects that are not looked into.
        """
        self.variables: list[tf.Variable] = []
        self.feeds: list[Any] = []
        self.tensors: list[tf.Tensor] = []
        self.optimizers: list[Any] = []
        self._skipped = {id(each) for each in skipped}
        self._digest = hashlib.blake2b(digest_size=20)
        self._numbers: dict[int, int] = {}
        # By number: the object, which is not to be gone before the end; the one that led to it, and how.
        self._found: list[tuple[Any, int, str]] = []
        self._at = -1  # The one that is being looked into.
        self._modules: set[tuple[str, str]] = set()

    def object(self, number: int) -> Any:
        """The object of a number of `number_of`."""
        return self._found[number][0]

    def number_of(self, value: Any) -> int | None:
        """How many objects were come by before this one; None where it was not reached."""
        return self._numbers.get(id(value))

    def digest(self) -> str:
        """The digest of all that was added."""
        return self._digest.hexdigest()

    def add(self, name: str, value: Any) -> None:
        """Adds an object and all that it leads to.

        Raises:
          NotKept: It leads to what cannot be looked into.
        """
        first = len(self._found)
        self._at = -1
        self._refer(name, value)
        for at in itertools.count(first):  # In the order in which they were come by: nothing is nested too deeply.
            if at == len(self._found):
                break
            self._at = at
            self._visit(self._found[at][0])

    def _say(self, *words: object) -> None:
        self._digest.update(repr(words).encode())

    def _refer(self, name: str, value: Any) -> None:
        """Says which object is there; what it leads to comes later."""
        kind = type(value)
        if kind in _PLAIN:
            self._say(name, kind.__name__, value)
            return
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._found)
            self._found.append((value, self._at, name))
            if number >= _MOST:
                raise self._refusal(f"one of more than {_MOST} objects")
        self._say(name, number)

    def _refusal(self, what: str) -> NotKept:
        words: list[str] = []
        at = self._at
        while at >= 0:
            _, at, name = self._found[at]
            words.append(name)
        return NotKept(f"`{''.join(reversed(words))}` is {what}")

    def _visit(self, value: Any) -> None:
        kind = type(value)
        if id(value) in self._skipped:
            self._say("skipped", *_code.name_of(kind))
        elif not (self._container(value, kind) or self._array(value) or self._code(value) or self._queue(value)):
            self._object(value, kind)

    def _container(self, value: Any, kind: type) -> bool:
        if kind in (tuple, list):
            self._say(kind.__name__, len(value))
            for at, each in enumerate(value):
                self._refer(f"[{at}]", each)
        elif kind in (dict, types.MappingProxyType):
            self._mapping(value)
        elif kind in (set, frozenset):
            self._set(value)
        elif isinstance(value, dict) and not issubclass(kind, dict):  # A proxy, such as a `tf.Module` has.
            self._mapping(dict(value))
        elif isinstance(value, enum.Enum):
            self._say("enum", *_code.name_of(kind), value.name)
        elif isinstance(value, weakref.ref):
            self._say("weak")
            self._refer("()", value())
        elif isinstance(value, _LOCKS) or kind is object:
            self._say("lock" if kind is not object else "object")
        else:
            return False
        return True

    def _mapping(self, value: Mapping[Any, Any]) -> None:
        self._say("dict", len(value))
        for key, each in list(dict.items(value) if isinstance(value, dict) else value.items()):
            if type(key) in _PLAIN:
                self._refer(f"[{key!r}]", each)
            else:
                self._refer("[a key]", key)
                self._refer("[its value]", each)

    def _set(self, value: Any) -> None:
        if not all(type(each) in _PLAIN for each in value):
            raise self._refusal("a set of objects, whose order is another one in each process")
        self._say("set", sorted(map(repr, value)))

    def _array(self, value: Any) -> bool:
        if isinstance(value, tf.Variable):
            self._say(
                "variable", len(self.variables), value.name, value.dtype.name, value.shape.as_list(), value.trainable
            )
            self._say(value.aggregation.name, value.synchronization.name, value.device)
            self.variables.append(value)
        elif isinstance(value, tf.Tensor):
            if not hasattr(value, "numpy") or value.dtype in (tf.resource, tf.variant):
                raise self._refusal("a tensor of a graph, or a handle")
            self._say("tensor", len(self.tensors), value.dtype.name, value.shape.as_list(), value.device)
            self._digest.update(_bytes_of(value.numpy()))
            self.tensors.append(value)
        elif isinstance(value, (np.ndarray, np.generic)):
            if value.dtype.hasobject:
                raise self._refusal("an array of objects")
            self._say("array", value.dtype.str, value.shape)
            self._digest.update(_bytes_of(value))
        elif isinstance(value, (np.dtype, tf.DType, tf.TensorShape, tf.TensorSpec)):
            self._say(type(value).__name__, repr(value))
        else:
            return False
        return True

    def _queue(self, value: Any) -> bool:
        if isinstance(value, IPUIterator):
            value = value._infeed_queue
        if not isinstance(value, (IPUInfeedQueue, IPUOutfeedQueue)):
            return False
        self._say(type(value).__name__, value._device, repr(value._type_spec), len(self.feeds))
        self.feeds.append(value._feed)
        return True

    def _code(self, value: Any) -> bool:
        if isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, functions.Function):
            self._say("tf.function", *functions.settings_of(value))
            self._refer("", value.python_function)
        elif isinstance(value, types.MethodType):
            self._say("method")
            self._refer("", value.__func__)
            self._refer(".__self__", value.__self__)
        elif isinstance(value, functools.partial):
            self._say("partial")
            self._refer("", (value.func, value.args, value.keywords))
        elif isinstance(value, (*_BUILTINS, types.MethodWrapperType)):
            self._refuse(_code.why_not(getattr(value, "__module__", None)))
            self._say("builtin", _code.name_of(value))
            owner = getattr(value, "__self__", None)
            if owner is not None and not isinstance(owner, types.ModuleType):
                self._refer(".__self__", owner)
        elif isinstance(value, (staticmethod, classmethod)):
            self._say(type(value).__name__)
            self._refer("", value.__func__)
        elif isinstance(value, property):
            self._say("property")
            self._refer("", (value.fget, value.fset, value.fdel))
        elif isinstance(value, functools.cached_property):
            self._say("cached property")
            self._refer("", value.func)
        elif isinstance(value, np.ufunc) or type(value).__name__ == "_ArrayFunctionDispatcher":
            self._say("numpy", value.__name__)
        elif isinstance(value, _SLOTS):
            self._say("slot", getattr(value, "__name__", ""))
        elif isinstance(value, types.ModuleType):
            self._module("", value, frozenset())
        elif isinstance(value, type):
            self._class(value)
        else:
            return False
        return True

    def _function(self, value: types.FunctionType) -> None:
        module = value.__globals__.get("__name__")  # `functools.wraps` changes what the function says.
        if _code.is_library(module):
            self._refuse(_code.why_not(module))
            self._say("library", module, value.__qualname__)
        else:
            self._names(value, _code.read(value.__code__))
        self._refer(" defaults ", (value.__defaults__, value.__kwdefaults__))
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            self._refer(f".{name}", cell.cell_contents) if _is_full(cell) else self._say(name, "empty")
        if not _code.is_library(module):
            self._mapping(value.__dict__)

    def _names(self, value: types.FunctionType, found: _code.Code) -> None:
        """Follows what a function names outside of itself."""
        self._say("function", found.text)
        for name in found.names:
            if name in value.__globals__:
                self._global(name, value.__globals__[name], found)
            elif name in _code.REFUSED_BUILTINS:
                self._refuse(f"`{name}`")
        for name in found.imports:
            module = sys.modules.get(name)
            if module is None:
                self._refuse(f"the module `{name}`, which it imports")
            else:
                self._global(name, module, found)

    def _refuse(self, used: str | None) -> None:
        if used is not None:
            raise self._refusal(f"a function that uses {used}")

    def _global(self, name: str, value: Any, code: _code.Code) -> None:
        if isinstance(value, types.ModuleType):
            self._module(name, value, code.attributes)
        else:
            self._refer(f".{name}", value)

    def _module(self, name: str, value: types.ModuleType, names: frozenset[str]) -> None:
        self._say("module", name, value.__name__)
        self._refuse(_code.why_not(value.__name__, names))
        if _code.is_library(value.__name__):
            return
        if not names:
            raise self._refusal(f"the module `{value.__name__}` itself, of which anything may be used")
        for one in sorted(names & vars(value).keys()):
            each = vars(value)[one]
            if not isinstance(each, types.ModuleType):
                self._refer(f".{name}.{one}", each)
            elif (one, each.__name__) not in self._modules:
                self._modules.add((one, each.__name__))
                self._module(one, each, names)

    def _class(self, value: type) -> None:
        self._say("class", *_code.name_of(value))
        if _code.is_library(value.__module__):
            self._refuse(_code.why_not(value.__module__))
            return
        for base in value.__mro__[1:]:
            if _code.is_library(base.__module__):
                self._say(*_code.name_of(base))
            else:
                self._refer(" base", base)
        self._mapping({name: each for name, each in vars(value).items() if name not in _code.OF_CLASSES})

    def _object(self, value: Any, kind: type) -> None:
        self._say("object", *_code.name_of(kind))
        if isinstance(value, tf.distribute.Strategy):
            # Of another kind than ours there is one, that of no scope at all.
            extended: Any = value.extended
            self._say(getattr(extended, "ordinal", None), getattr(extended, "host_kernels", None))
            return
        if not _code.is_library(kind.__module__):
            self._refer(" class", kind)
        if isinstance(value, tf.keras.optimizers.Optimizer):
            self.optimizers.append(value)
        for base in kind.__mro__:
            if base in (list, tuple, collections.deque):
                self._say(len(value))
                for at, each in enumerate(base.__iter__(value)):
                    self._refer(f"[{at}]", each)
            elif base is dict:
                self._mapping(value)
            elif base is collections.defaultdict:
                self._refer(" default", value.default_factory)
            elif base is set:
                self._set(value)
            elif base is not object and not base.__flags__ & _HEAP_TYPE and base is not collections.OrderedDict:
                raise self._refusal(f"of type `{kind.__module__}.{kind.__qualname__}`, which cannot be looked into")
        if type(kind).__name__ == "pybind11_type":
            raise self._refusal(f"of type `{kind.__module__}.{kind.__qualname__}`, which cannot be looked into")
        for name in _code.slots_of(kind):
            if hasattr(value, name):
                self._refer(f".{name}", getattr(value, name))
        left_out = _left_out(value) if _code.is_library(kind.__module__) else frozenset()
        for name, each in list(getattr(value, "__dict__", {}).items()):
            if name not in left_out:
                self._refer(f".{name}", each)


def _is_full(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # So Python says that it is not.
        return False


def _left_out(value: Any) -> frozenset[str]:
    """Attributes of an object of a library that do not say what is traced."""
    if isinstance(value, (tf.keras.initializers.Initializer, tf.keras.random.SeedGenerator)):
        return _code.OF_INITIALIZERS
    return _code.OF_LIBRARIES


def _bytes_of(value: Any) -> bytes:
    return np.ascontiguousarray(value).tobytes()
