"""Actions at the end of objects run once, and never lose a `KeyboardInterrupt`."""

from __future__ import annotations

import ast
import ctypes
import gc
from pathlib import Path
from typing import Any

import pytest

import tensorflow_ipu
from tensorflow_ipu._base import lifetimes

PACKAGE = Path(tensorflow_ipu.__file__ or "").parent


class Subject:
    """An object that can be referenced weakly and equals all instances of its class."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Subject)

    __hash__ = None  # type: ignore[assignment]


def test_actions_are_performed_once_after_the_end_of_their_object():
    performed: list[str] = []
    first, second = Subject(), Subject()
    lifetimes.call_later(first, lambda: performed.append("first"))
    lifetimes.call_later(first, lambda: performed.append("first again"))
    lifetimes.call_later(second, lambda: performed.append("second"))
    lifetimes.call_due()
    assert performed == []
    del first
    lifetimes.call_due()
    assert sorted(performed) == ["first", "first again"]
    second.itself = second  # type: ignore[attr-defined]
    del second
    gc.collect()
    lifetimes.call_later(Subject(), lambda: None)  # This also runs actions that are due.
    assert performed[2:] == ["second"]
    lifetimes.call_due()
    assert len(performed) == 3


def test_a_c_function_is_called_with_its_number_as_the_object_ends():
    # Each call of `srand` restarts the random numbers of the C library.
    library: Any = ctypes.CDLL(None)
    library.srand.argtypes, library.srand.restype = [ctypes.c_int64], None
    library.srand(7)
    expected = [library.rand() for _ in range(3)]
    library.srand(8)
    subject = Subject()
    lifetimes.call_native(subject, library.srand, 7)
    assert library.rand() != expected[0]
    del subject
    assert [library.rand() for _ in range(3)] == expected


def test_an_interrupt_in_an_action_reaches_the_caller_and_leaves_the_other_actions_due():
    performed: list[int] = []

    def interrupt() -> None:
        raise KeyboardInterrupt

    lifetimes.call_due()
    subjects = [Subject() for _ in range(3)]
    for number, action in enumerate((lambda: performed.append(1), interrupt, lambda: performed.append(1))):
        lifetimes.call_later(subjects[number], action)
    del subjects
    with pytest.raises(KeyboardInterrupt):
        lifetimes.call_due()
    lifetimes.call_due()
    assert performed == [1, 1]


def test_weak_objects_are_there_while_others_keep_them_and_are_told_apart_by_identity():
    objects, first, second = lifetimes.WeakObjects(), Subject(), Subject()
    objects.add(first)
    assert (first in objects, second in objects) == (True, False)
    objects.add(second)
    assert [actual is expected for actual, expected in zip(objects, (first, second), strict=True)] == [True, True]
    del first
    assert len(list(objects)) == 1
    assert second in objects


# These finalizers run no Python code on the main thread while it lives: the stack of scopes ends with its thread, and
# the callback is a method written in C.
NO_FINALIZERS = [
    "embedded_runtime.py: weakref.ref(context, self._end_of_context.put)",
    "ipu_strategy.py: _EnteredScopes.__del__",
]


# A Ctrl-C in a finalizer was once printed and lost, and `fit` continued to its last epoch.
def test_the_package_has_no_finalizer_in_python():
    offenders = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node, "attr", getattr(node, "id", getattr(node, "name", "")))
            if name in ("finalize", "WeakKeyDictionary", "WeakValueDictionary", "WeakSet"):
                offenders.append(f"{path.name}: {name}")
            if isinstance(node, ast.ClassDef):
                methods = [member.name for member in node.body if isinstance(member, ast.FunctionDef)]
                offenders += [f"{path.name}: {name}.__del__"] * methods.count("__del__")
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "weakref.ref" and len(node.args) > 1:
                offenders.append(f"{path.name}: {ast.unparse(node)}")
    assert sorted(offenders) == NO_FINALIZERS
