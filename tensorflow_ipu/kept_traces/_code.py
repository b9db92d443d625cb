"""What a function's code names; which code is a library's, known by its version; what no trace may ask."""

from __future__ import annotations

import dis
import functools
import sys
import sysconfig
import types
from collections.abc import Iterable
from typing import Any, NamedTuple

# Known by their versions, of which a kept trace is one of.
_LIBRARIES = frozenset({"keras", "numpy", "tensorflow", "tensorflow_ipu"})
# Of Python's own modules those whose functions return the same each time.
_STEADY = frozenset(
    {
        "abc", "bisect", "builtins", "cmath", "collections", "contextlib", "copy", "dataclasses", "enum", "fractions",
        "functools", "heapq", "inspect", "itertools", "keyword", "logging", "math", "numbers", "operator", "re", "statistics",
        "string", "textwrap", "types", "typing", "typing_extensions", "warnings", "weakref", "_collections_abc", "_thread",
        "threading", "__future__", "_weakref", "_weakrefset", "_functools", "_operator", "_abc", "_collections",
    }
)  # fmt: skip
_STANDARD = sysconfig.get_path("stdlib")
REFUSED_BUILTINS = frozenset({"__import__", "eval", "exec", "globals", "hash", "id", "input", "locals", "open"})
# What does not say what instances of a class do.
OF_CLASSES = frozenset(
    {
        "__annotations__",
        "__dict__",
        "__doc__",
        "__firstlineno__",
        "__module__",
        "__static_attributes__",
        "__weakref__",
        "_abc_impl",
    }
)
# What Keras writes to its objects besides what it says elsewhere: which were called, and numbers that are others in each
# process, of their nodes, variables and losses.
OF_LIBRARIES = frozenset({"_called", "_loss_ids", "_nodes", "_trainable_variables_indices", "stored_ids"})
# The seeds that Keras has drawn for variables: a trace makes none, and variables of seeds are variables.
OF_INITIALIZERS = frozenset({"_init_seed", "_initial_seed", "seed"})


class Code(NamedTuple):
    """What is read of code.

    Attributes:
      text: All that says what it does, without its file and lines.
      names: The names that it looks up in its module, or finds built in.
      attributes: The same, and those of attributes: what it may ask modules for.
      imports: The modules that it imports as it runs.
    """

    text: str
    names: tuple[str, ...]
    attributes: frozenset[str]
    imports: tuple[str, ...]


@functools.lru_cache(maxsize=4096)
def read(code: types.CodeType) -> Code:
    """Reads code, with that of functions within it."""
    texts: list[str] = []
    names: dict[str, None] = {}
    imports: dict[str, None] = {}
    attributes: set[str] = set()
    for one in _with_inner(code):
        constants = [
            type(each).__name__ if isinstance(each, types.CodeType) else _constant(each) for each in one.co_consts
        ]
        known = (one.co_name, one.co_code, constants, one.co_names, one.co_varnames, one.co_freevars, one.co_cellvars)
        texts.append(repr((*known, one.co_argcount, one.co_kwonlyargcount, one.co_posonlyargcount, one.co_flags)))
        texts.append(repr(getattr(one, "co_exceptiontable", b"")))
        attributes.update(one.co_names)
        for each in dis.get_instructions(one):
            if each.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                names[each.argval] = None
            elif each.opname == "IMPORT_NAME":
                imports[each.argval] = None
    return Code("\n".join(texts), tuple(names), frozenset(attributes), tuple(imports))


def _constant(value: Any) -> str:
    """A constant as text that is the same in each process."""
    return f"frozenset({sorted(map(repr, value))})" if isinstance(value, frozenset) else repr(value)


def _with_inner(code: types.CodeType) -> Iterable[types.CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _with_inner(each)


def name_of(value: Any) -> tuple[str, str]:
    """The module and name of a class or function."""
    module = getattr(value, "__module__", None)
    return str(module), str(getattr(value, "__qualname__", getattr(value, "__name__", "")))


@functools.lru_cache(maxsize=4096)
def is_library(module: str | None) -> bool:
    """Whether code of a module is known by a version: TensorFlow's, Keras's, ours, NumPy's, Python's own."""
    top = str(module).partition(".")[0]
    return top in _LIBRARIES or _is_pythons(top)


@functools.lru_cache(maxsize=4096)
def _is_pythons(top: str) -> bool:
    """Whether a module is Python's own, and no script of the user's by such a name."""
    if top not in sys.stdlib_module_names or top == "__main__":
        return False
    file = getattr(sys.modules.get(top), "__file__", None)
    return file is None or (file.startswith(_STANDARD) and "site-packages" not in file)


def why_not(module: str | None, names: frozenset[str] = frozenset()) -> str | None:
    """Why no trace is kept that uses a module, in words; None where one may be."""
    top = str(module).partition(".")[0]
    if _is_pythons(top) and top not in _STEADY:
        return f"the module `{module}`, which may say something else each time it is asked"
    if top == "numpy" and (str(module).startswith("numpy.random") or "random" in names):
        return "NumPy, asked for random numbers, which would be others each time"
    return None


@functools.lru_cache(maxsize=4096)
def slots_of(kind: type) -> tuple[str, ...]:
    """The attributes that instances of a class have in slots."""
    found: list[str] = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        found += [slots] if isinstance(slots, str) else list(slots)
    return tuple(name for name in dict.fromkeys(found) if name not in ("__dict__", "__weakref__"))
