"""Captures gradients with respect to intermediate tensors while TensorFlow computes gradients."""

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


class _OpenContexts(threading.local):
    """The contexts that the thread has open, the innermost last."""

    def __init__(self) -> None:
        self.contexts: list[GradientCaptureContext] = []


_open = _OpenContexts()


class _CapturedGradient:
    """A captured gradient, which can be read outside of the loop or branch that computes it.

    It is stored in a variable, unless the context was opened in the same loop or branch.
    """

    def __init__(self, gradient: Gradient, opened_in: tf.Graph) -> None:
        self._graph = tf.compat.v1.get_default_graph()
        self._gradient = gradient
        self._variable: tf.Variable | None = None
        enclosing = graphs.enclosing(self._graph)
        # In a branch inside of a loop, TensorFlow's gradient cannot capture a variable from outside of the loop.
        is_nested = graphs.is_branch(self._graph) and graphs.is_control_flow(enclosing)
        if graphs.is_control_flow(self._graph) and self._graph is not opened_in and not is_nested:
            self._store(tf.convert_to_tensor(gradient))

    def _store(self, value: tf.Tensor) -> None:
        if not value.shape.is_fully_defined():
            raise ValueError(
                "`capture_upstream_gradients` in a loop or branch requires gradients of static shape, but captures one"
                f" of shape {value.shape}; use `tf.ensure_shape`"
            )
        device = sites.device_of_program("capture_upstream_gradients") if programs.is_tracing() else None
        self._variable = kept_variables.zeros(value.shape, value.dtype, "captured_gradient", device)
        tf.raw_ops.AssignVariableOp(resource=programs.in_function(self._variable.handle), value=value)
        sites.keep_with_trace(self._variable)

    def value(self) -> Any:
        """Returns the gradient as a tensor for the graph that is being built."""
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        if self._variable is None or self._graph in graphs.around(graph):
            return self._gradient
        return self._variable.read_value()


# The attribute with the list of `Capture`s of a graph that computes the gradient of an outlined function.
OUTLINED = "ipu_captures"


class Capture(NamedTuple):
    """The gradients that one call of `capture_upstream_gradients` captured."""

    context: GradientCaptureContext
    tag: str
    gradients: Sequence[tf.Tensor]

    def note(self) -> None:
        """Adds the gradients to the context.

        In the gradient graph of an outlined function, adds them to the captures of the graph instead. Each call of the
        graph returns these gradients as results, and the results are noted in the graph of the call.
        """
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        captures: list[Capture] | None = getattr(graph, OUTLINED, None)
        if captures is not None:
            captures.append(self)
            return
        opened_in = self.context._opened_in
        self.context._captured[self.tag] = [_CapturedGradient(gradient, opened_in) for gradient in self.gradients]


def remember_tags() -> Callable[[], None]:
    """Returns a function that restores the current tags of the open contexts, so that calls can be traced again."""
    original = [(context, set(context._tags)) for context in _open.contexts]

    def restore() -> None:
        for context, tags in original:
            context._tags = tags

    return restore


class GradientCaptureContext:
    """A context whose calls of `capture_upstream_gradients` capture gradients. These may be computed after its end.

        with tf.GradientTape() as tape, GradientCaptureContext() as context:
            y = tf.tanh(capture_upstream_gradients(x * x, tag="of the square"))
        tape.gradient(y, x)
        context.captured_gradients  # {"of the square": [...]}

    A call in a loop captures the gradient that is computed last. If a loop or branch computes no gradient, the captured
    one is zero. A gradient in a branch inside of a loop cannot be read outside of that branch.
    """

    def __init__(self) -> None:
        self._tags: set[str] = set()
        self._captured: dict[str, list[_CapturedGradient]] = {}
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
        """The captured gradients by tag: a list with the gradient of each tensor of the call."""
        return {tag: [gradient.value() for gradient in captured] for tag, captured in self._captured.items()}

    @captured_gradients.setter
    def captured_gradients(self, _: object) -> None:
        raise ValueError("`captured_gradients` cannot be set")


class GradientCaptureTape(tf.GradientTape, GradientCaptureContext):
    """A `tf.GradientTape` that also captures gradients. Each call of `gradient` replaces them."""

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True) -> None:
        """Creates the tape; see `tf.GradientTape` for the arguments."""
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
        """Computes gradients, as `tf.GradientTape.gradient` does, and captures upstream gradients."""
        self._captured = {}
        return tf.GradientTape.gradient(self, target, sources, output_gradients, unconnected_gradients)


def capture_upstream_gradients(args: Nested, tag: str = "") -> Nested:
    """Returns a structure of tensors unchanged. The innermost open context captures their upstream gradients.

    The context stores them under `tag`.

    Raises:
      RuntimeError: No context is open.
      ValueError: Another call in the context has the same tag. Or the gradient is computed in a loop or branch, and its
        shape is not static.
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
            # A gradient may be a tensor of the forward pass, which is in another graph. `tf.identity` copies it to this
            # one.
            passed = tuple(map(tf.identity, upstream))
            Capture(context, tag, passed).note()
            return passed

        return [tf.identity(tensor) for tensor in tensors], gradient

    flat = [tf.convert_to_tensor(tensor) for tensor in tf.nest.flatten(args)]
    return tf.nest.pack_sequence_as(args, identities(*flat))


def num_gradient_collection_tapes() -> int:
    """Returns the number of contexts that the thread has open."""
    return len(_open.contexts)
