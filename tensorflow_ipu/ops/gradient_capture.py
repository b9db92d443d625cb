"""Gradients of what is inside a computation, caught on their way back through it."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._tensorflow import graphs
from tensorflow_ipu.ops import kept_variables, sites

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from tensorflow_ipu._base.types import Gradient, Nested

__all__ = [
    "GradientCaptureContext",
    "GradientCaptureTape",
    "capture_upstream_gradients",
    "num_gradient_collection_tapes",
]


class _Open(threading.local):
    """The contexts that the thread is in, the innermost last."""

    def __init__(self) -> None:
        self.contexts: list[GradientCaptureContext] = []


_open = _Open()


class _Captured:
    """A gradient that went by."""

    def __init__(self, gradient: Gradient, opened_in: tf.Graph) -> None:
        """Keeps a gradient; in a loop or branch of the graph in which the context was opened, in a variable."""
        self._graph = tf.compat.v1.get_default_graph()
        self._gradient = gradient
        self._kept: tf.Variable | None = None
        around = graphs.enclosing(self._graph)
        # TensorFlow's gradient of a branch in a loop cannot capture from outside of the loop.
        nested = graphs.is_branch(self._graph) and graphs.is_control_flow(around)
        if graphs.is_control_flow(self._graph) and self._graph is not opened_in and not nested:
            self._keep(tf.convert_to_tensor(gradient))

    def _keep(self, value: tf.Tensor) -> None:
        if not value.shape.is_fully_defined():
            raise ValueError(
                f"`capture_upstream_gradients` in a loop or branch captures a gradient of shape {value.shape}: out of those,"
                " static shapes alone are handed on; state it with `tf.ensure_shape`"
            )
        device = sites.device_of_program("capture_upstream_gradients") if programs.is_tracing() else None
        self._kept = kept_variables.zeros(value.shape, value.dtype, "captured_gradient", device)
        tf.raw_ops.AssignVariableOp(resource=programs.in_function(self._kept.handle), value=value)
        sites.keep_with_trace(self._kept)

    def value(self) -> Any:
        """Returns the gradient as a tensor of the present graph."""
        now = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        if self._kept is None or self._graph in graphs.around(now):
            return self._gradient
        return self._kept.read_value()


# What the graph of the gradient of an outlined function has the list of its `Capture`s as.
OUTLINED = "ipu_captures"


class Capture(NamedTuple):
    """The gradients that went by one call of `capture_upstream_gradients`."""

    context: GradientCaptureContext
    tag: str
    gradients: Sequence[tf.Tensor]

    def note(self) -> None:
        """Adds them to the context; those of an outlined function once they are results of a call."""
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        of_function: list[Capture] | None = getattr(graph, OUTLINED, None)
        if of_function is not None:
            of_function.append(self)
            return
        opened_in = self.context._opened_in
        self.context._captured[self.tag] = [_Captured(gradient, opened_in) for gradient in self.gradients]


def reusing_tags() -> Callable[[], None]:
    """Returns a function that frees the tags which the open contexts get from now on, for calls that are made once more."""
    before = [(context, set(context._tags)) for context in _open.contexts]

    def free() -> None:
        for context, tags in before:
            context._tags = tags

    return free


class GradientCaptureContext:
    """A block that collects the gradients of its calls of `capture_upstream_gradients`, whenever they are computed.

        with tf.GradientTape() as tape, GradientCaptureContext() as context:
            y = tf.tanh(capture_upstream_gradients(x * x, tag="of the square"))
        tape.gradient(y, x)
        context.captured_gradients  # {"of the square": [...]}

    Of a call in a loop it has the gradient that went by last; zeros where none has gone by in a loop or branch. Out of a
    branch in a loop it returns nothing.
    """

    def __init__(self) -> None:
        self._tags: set[str] = set()
        self._captured: dict[str, list[_Captured]] = {}
        self._opened_in = tf.compat.v1.get_default_graph()

    def __enter__(self) -> Self:
        self._opened_in = tf.compat.v1.get_default_graph()
        _open.contexts.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _open.contexts.remove(self)

    @property
    def captured_gradients(self) -> dict[str, list[tf.Tensor]]:
        """Returns the captured gradients by their tags: lists, with an element for each tensor of the call."""
        return {tag: [gradient.value() for gradient in captured] for tag, captured in self._captured.items()}

    @captured_gradients.setter
    def captured_gradients(self, _: object) -> None:
        raise ValueError("`captured_gradients` is what was captured, and cannot be set")


class GradientCaptureTape(tf.GradientTape, GradientCaptureContext):
    """A `tf.GradientTape` that captures gradients too: those of its last call of `gradient`."""

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True) -> None:
        """Creates the tape. See `tf.GradientTape` for the arguments."""
        tf.GradientTape.__init__(self, persistent, watch_accessed_variables)
        GradientCaptureContext.__init__(self)

    def __enter__(self) -> Self:
        GradientCaptureContext.__enter__(self)
        tf.GradientTape.__enter__(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tf.GradientTape.__exit__(self, kind, error, trace)
        GradientCaptureContext.__exit__(self, kind, error, trace)

    def gradient(
        self,
        target: Nested,
        sources: Nested,
        output_gradients: Nested = None,
        unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
    ) -> Nested:
        """Computes gradients, as `tf.GradientTape.gradient` does, and captures those that go by."""
        self._captured = {}
        return tf.GradientTape.gradient(self, target, sources, output_gradients, unconnected_gradients)


def capture_upstream_gradients(args: Nested, tag: str = "") -> Nested:
    """Returns a structure of tensors as it is, and has the innermost open context capture the gradients that come back to it.

    The context has them under `tag`.

    Raises:
      RuntimeError: No context is open.
      ValueError: The context has such a tag already; or, as the gradient is computed, it goes by in a loop or branch and
        has no static shape.
    """
    if not _open.contexts:
        raise RuntimeError(
            "`capture_upstream_gradients` can only be called within a `GradientCaptureTape` or a"
            " `GradientCaptureContext`"
        )
    context = _open.contexts[-1]
    if tag in context._tags:
        raise ValueError(f"`tag={tag!r}` is that of another call in this `{type(context).__name__}`; choose another")
    context._tags.add(tag)

    @tf.custom_gradient
    def identities(*tensors: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., tuple[tf.Tensor, ...]]]:
        def gradient(*upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            # A gradient may be a tensor of the forward pass as it is, which is in another graph.
            passed = tuple(map(tf.identity, upstream))
            Capture(context, tag, passed).note()
            return passed

        return [tf.identity(tensor) for tensor in tensors], gradient

    flat = [tf.convert_to_tensor(tensor) for tensor in tf.nest.flatten(args)]
    return tf.nest.pack_sequence_as(args, identities(*flat))


def num_gradient_collection_tapes() -> int:
    """Returns how many contexts the thread has open."""
    return len(_open.contexts)
