"""The messages of errors that operations of ours raise, without what TensorFlow puts around them.

Stands on the form of its messages, and on `OpError._message`, for neither of which there is a public name. When they are
others: a message keeps what is around it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import tensorflow as tf

from tensorflow_ipu._tensorflow import patches

_P = ParamSpec("_P")
_T = TypeVar("_T")

# Tags of nodes and functions, and which eager operation it was.
_TAGS = re.compile(r"\s*\n\t \[\[[^\n]*\]\]|\{\{function_node [^}]*\}\}\s*|\s*\[Op:[^\]]*\](?: name: \S*)?\s*$")
# How the description of a node begins that stands above a message.
_DESCRIPTION = ("Graph execution error:", "Detected at node", "Node: ", "<stack traces unavailable>", " ")
# Where several operations fail, of which the first tells.
_FIRST = re.compile(
    r"\d+ root error\(s\) found\.\s*\(0\) [A-Z_]+: (.*?)\s*(?:\n\s*\(1\) |\d+ successful operations).*", re.DOTALL
)
_OURS = re.compile(r"\{\{node (?:[^}]*/)?Ipu[A-Z]")


def plain_message(message: str) -> str:
    """A message as the operation has given it."""
    lines = message.split("\n")
    if lines[0] == "Graph execution error:":
        while lines and (not lines[0] or lines[0].startswith(_DESCRIPTION)):
            del lines[0]
    return _FIRST.sub(r"\1", _TAGS.sub("", "\n".join(lines)).strip())


def told_plainly(error: tf.errors.OpError) -> tf.errors.OpError:
    """The same error with the message of its operation alone, to be raised in its place."""
    told = type(error)(error.node_def, error.op, plain_message(error.message), error.experimental_payloads)
    return told.with_traceback(error.__traceback__)


def telling_plainly(operation: Callable[_P, _T]) -> Callable[_P, _T]:
    """An operation of ours whose errors have its message alone where it runs eagerly."""

    @functools.wraps(operation)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return operation(*args, **kwargs)
        except tf.errors.OpError as exc:
            raise told_plainly(exc) from None

    return call


def _of_functions(plain: Callable[..., bool]) -> Callable[..., bool]:
    def leave(
        self: object, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        failure: Any = error
        if isinstance(error, tf.errors.OpError) and _OURS.search(failure.message):
            failure._message = plain_message(failure.message)
            return False
        return plain(self, kind, error, traceback)

    return leave


def _of_sessions(plain: Callable[[str, tf.Graph], str]) -> Callable[[str, tf.Graph], str]:
    return lambda message, graph: plain_message(message) if _OURS.search(message) else plain(message, graph)


patches.FUNCTION_ERRORS.by(_of_functions)
patches.SESSION_ERRORS.by(_of_sessions)


def tell_plainly_in(graph: tf.Graph) -> None:
    """Has errors of our operations in a graph be told so, by whoever runs it, as long as it lives."""
    patches.FUNCTION_ERRORS.apply_while(graph)
    patches.SESSION_ERRORS.apply_while(graph)
