"""Reduces errors of this package's operations to the message that the operation wrote.

TensorFlow adds tags and stack traces of nodes to messages.
Uses the private `OpError._message` and relies on the form of messages. Without it: messages keep what TensorFlow adds.
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

# Tags of nodes and functions, and the suffix that names the eager operation.
_TAGS = re.compile(r"\s*\n\t \[\[[^\n]*\]\]|\{\{function_node [^}]*\}\}\s*|\s*\[Op:[^\]]*\](?: name: \S*)?\s*$")
# Lines that begin like this describe the node, and precede the message.
_DESCRIPTION = ("Graph execution error:", "Detected at node", "Node: ", "<stack traces unavailable>", " ")
# The form of a message if several operations failed. The first group has the message of the first one.
_FIRST = re.compile(
    r"\d+ root error\(s\) found\.\s*\(0\) [A-Z_]+: (.*?)\s*(?:\n\s*\(1\) |\d+ successful operations).*", re.DOTALL
)
# The tag of an operation of this package that raised the error or passed it on: `[[{{node step/IpuReplicatedRun}}]]`.
_OURS = re.compile(r"\[\[(?:\{\{function_node [^}]*\}\})*(?:\{\{node )?(?:[^]}]*/)?Ipu[A-Z]\w*(?:\}\})?\]\]")
# XLA's message if a program is called on another device than the one that has its queues and state variables.
_ELSEWHERE = re.compile(
    r"Trying to access resource ipu_\S+ located in device \S*(/device:\S+) from device \S*(/device:\S+).*", re.DOTALL
)
_CALLED = (
    r"The program uses a queue or a state variable of `\1`, but was called on `\2`. Call it with `IPUStrategy.run`,"
    r" which runs it on `\1`"
)

_IS_PLAIN = "_ipu_tells_plainly"  # An attribute that marks graphs after `show_plain_errors_in`.


def is_ours(message: str) -> bool:
    """Returns True if the (first) operation that failed belongs to this package."""
    return _OURS.search(_FIRST.sub(r"\1", message)) is not None or _ELSEWHERE.search(message) is not None


def plain_message(message: str) -> str:
    """Returns the part of `message` that the operation wrote."""
    lines = message.split("\n")
    if lines[0] == "Graph execution error:":
        while lines and (not lines[0] or lines[0].startswith(_DESCRIPTION)):
            del lines[0]
    return _ELSEWHERE.sub(_CALLED, _FIRST.sub(r"\1", _TAGS.sub("", "\n".join(lines)).strip()))


def with_plain_message(error: tf.errors.OpError) -> tf.errors.OpError:
    """Returns a copy of `error` to raise in its place. It has only the message that the operation wrote."""
    plain_error = type(error)(error.node_def, error.op, plain_message(error.message), error.experimental_payloads)
    plain_error.__suppress_context__ = True
    return plain_error.with_traceback(error.__traceback__)


def with_plain_errors(operation: Callable[_P, _T], eagerly: bool = True) -> Callable[_P, _T]:
    """Wraps an operation of this package, so that its errors only have the message that the operation wrote.

    This applies to operations in graphs and, if `eagerly`, to eager ones.
    """

    # `__module__` is not copied. Since it names this package, AutoGraph does not convert the wrapper.
    @functools.wraps(operation, assigned=("__name__",))
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if not tf.executing_eagerly():
            if not hasattr(tf.compat.v1.get_default_graph(), _IS_PLAIN):
                for graph in graphs.being_built():
                    setattr(graph, _IS_PLAIN, True)
                    show_plain_errors_in(graph)
            return operation(*args, **kwargs)
        try:
            return operation(*args, **kwargs)
        except tf.errors.OpError as exc:
            if not eagerly:
                raise
            raise with_plain_message(exc) from None

    return call


def _exit_with_plain_error(original: Callable[..., bool]) -> Callable[..., bool]:
    def leave(
        self: object, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        failure: Any = error
        if isinstance(error, tf.errors.OpError) and is_ours(failure.message):
            failure._message = plain_message(failure.message)
            return False
        return original(self, kind, error, traceback)

    return leave


def _interpolate_plainly(original: Callable[[str, tf.Graph], str]) -> Callable[[str, tf.Graph], str]:
    return lambda message, graph: plain_message(message) if is_ours(message) else original(message, graph)


def show_plain_errors_in(graph: tf.Graph) -> None:
    """Reduces errors of this package's operations in `graph` to their messages, while the graph lives."""
    patches.FUNCTION_ERRORS.apply_while(graph, _exit_with_plain_error)
    patches.SESSION_ERRORS.apply_while(graph, _interpolate_plainly)
