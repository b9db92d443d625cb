"""The messages of errors of our operations, without what TensorFlow puts around them.

Stands on the form of its messages, and on `OpError._message`. When they change: a message keeps what is around it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import tensorflow as tf

from tensorflow_ipu._tensorflow import graphs, patches

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
# An operation of ours that an error began in, or passed. What waited for a result of ours is called like it, and a number.
_OURS = re.compile(r"\[\[(?:\{\{function_node [^}]*\}\})*(?:\{\{node )?(?:[^]}]*/)?Ipu[A-Z]\w*(?:\}\})?\]\]")
# What XLA says of a program that is called elsewhere than on its device, where its queues and other states are.
_ELSEWHERE = re.compile(
    r"Trying to access resource ipu_\S+ located in device \S*(/device:\S+) from device \S*(/device:\S+).*", re.DOTALL
)
_CALLED = (
    r"The program uses a queue, or another state, of `\1`, and was called on `\2`. Call it with `IPUStrategy.run`, which"
    " runs it there"
)

_TELLS = "_ipu_tells_plainly"  # The attribute of graphs for which `tell_plainly_in` was called.


def is_ours(message: str) -> bool:
    """Returns True if an operation of ours failed; of several that did, the first."""
    return _OURS.search(_FIRST.sub(r"\1", message)) is not None or _ELSEWHERE.search(message) is not None


def plain_message(message: str) -> str:
    """A message as the operation wrote it."""
    lines = message.split("\n")
    if lines[0] == "Graph execution error:":
        while lines and (not lines[0] or lines[0].startswith(_DESCRIPTION)):
            del lines[0]
    return _ELSEWHERE.sub(_CALLED, _FIRST.sub(r"\1", _TAGS.sub("", "\n".join(lines)).strip()))


def told_plainly(error: tf.errors.OpError) -> tf.errors.OpError:
    """Returns the same error with the message of its operation alone, to be raised in its place."""
    told = type(error)(error.node_def, error.op, plain_message(error.message), error.experimental_payloads)
    told.__suppress_context__ = True
    return told.with_traceback(error.__traceback__)


def telling_plainly(operation: Callable[_P, _T], eagerly: bool = True) -> Callable[_P, _T]:
    """Makes errors of an operation of ours have its message alone, in graphs and, with `eagerly`, where it runs eagerly."""

    # Without its module: AutoGraph leaves functions of this package alone by theirs.
    @functools.wraps(operation, assigned=("__name__",))
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if not tf.executing_eagerly():
            if not hasattr(tf.compat.v1.get_default_graph(), _TELLS):
                for graph in graphs.being_built():
                    setattr(graph, _TELLS, True)
                    tell_plainly_in(graph)
            return operation(*args, **kwargs)
        try:
            return operation(*args, **kwargs)
        except tf.errors.OpError as exc:
            if not eagerly:
                raise
            raise told_plainly(exc) from None

    return call


def _of_functions(plain: Callable[..., bool]) -> Callable[..., bool]:
    def leave(
        self: object, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        failure: Any = error
        if isinstance(error, tf.errors.OpError) and is_ours(failure.message):
            failure._message = plain_message(failure.message)
            return False
        return plain(self, kind, error, traceback)

    return leave


def _of_sessions(plain: Callable[[str, tf.Graph], str]) -> Callable[[str, tf.Graph], str]:
    return lambda message, graph: plain_message(message) if is_ours(message) else plain(message, graph)


def tell_plainly_in(graph: tf.Graph) -> None:
    """Has errors of our operations in a graph have their message alone, as long as it lives."""
    patches.FUNCTION_ERRORS.apply_while(graph, _of_functions)
    patches.SESSION_ERRORS.apply_while(graph, _of_sessions)
