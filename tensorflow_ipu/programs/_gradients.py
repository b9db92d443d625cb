"""Gives gradients the shards and attributes of their operations, and frees those of `tf.custom_gradient`."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tensorflow_ipu._base import lifetimes
from tensorflow_ipu._base.types import Gradient, TensorLike
from tensorflow_ipu._tensorflow import gradients, graphs, patches
from tensorflow_ipu.programs import _floating_point, _instruction_attributes, _shards, _trace_context

_Gradient = Callable[..., Any]

# By which a tape keeps what instructions say.
_INHERITED = "_IpuInherited"


def follow_operations(graph: tf.Graph) -> None:
    """Has gradients follow their operations, as long as the graph lives."""
    patches.GRADIENT_LOOKUPS.apply_while(graph, _looking_up)
    patches.OWN_GRADIENTS.apply_while(graph, _finding_own)
    patches.RECORDED_OPERATIONS.apply_while(graph, _recording)


class _Declared(NamedTuple):
    shards: Sequence[int] | None
    attributes: Mapping[str, str]

    @contextlib.contextmanager
    def said(self) -> Iterator[None]:
        """A block of whose operations it is said."""
        with contextlib.ExitStack() as stack:
            if self.shards is not None:
                stack.enter_context(_shards.placed(self.shards))
            if self.attributes:
                stack.enter_context(_instruction_attributes.set_to(self.attributes))
            yield


def _following(gradient: _Gradient | None) -> _Gradient | None:
    """A gradient whose operations get the shards and attributes of the operation it is called with."""
    if gradient is None:
        return None

    def follow(operation: Any, *upstream: Any) -> Any:
        with _said_of(operation).said():
            return gradient(operation, *upstream)

    return follow


def _said_of(operation: Any) -> _Declared:
    if isinstance(operation, tf.Operation):
        return _Declared(_shards.placed_on(operation), _instruction_attributes.inherited_from(operation))
    recorded = gradients.recorded_attributes(operation)
    known = dict(zip(recorded[::2], recorded[1::2], strict=False))
    shards = known.get(_shards.SHARD_ATTRIBUTE)
    return _Declared(None if shards is None else list(shards), dict(known.get(_INHERITED, ())))


_looking_up = gradients.lookups_through(_following)


def _finding_own(plain: Callable[[tf.Operation], _Gradient | None]) -> Callable[[tf.Operation], _Gradient | None]:
    def find(operation: tf.Operation) -> _Gradient | None:
        found = plain(operation)
        # Those that are looked up follow already.
        return _following(found) if found is not None and found is gradients.own_gradient(operation) else found

    return find


def _recording(plain: Callable[..., None]) -> Callable[..., None]:
    def record(kind: str, inputs: Sequence[tf.Tensor], attributes: Sequence[Any], results: Sequence[tf.Tensor]) -> None:
        first = results[0] if isinstance(results, (list, tuple)) and results else None
        if isinstance(first, tf.Tensor) and hasattr(first, "graph"):
            said = _said_of(first.op)
            if said.shards is not None:
                attributes = (*(attributes or ()), _shards.SHARD_ATTRIBUTE, tuple(said.shards))
            if said.attributes:
                attributes = (*(attributes or ()), _INHERITED, tuple(said.attributes.items()))
        plain(kind, inputs, attributes, results)

    return record


def _in_graph(gradient: TensorLike | tf.IndexedSlices | None, of: tf.Tensor) -> Gradient | None:
    """Returns a number, array, variable or eager tensor as a tensor of the graph; tapes take those, `tf.gradients` does not."""
    if gradient is None or isinstance(gradient, tf.IndexedSlices):
        return gradient
    return tf.convert_to_tensor(gradient, dtype_hint=None if of.dtype == tf.resource else of.dtype)


def registering(plain: Callable[..., None]) -> Callable[..., None]:
    """Has the gradients of `tf.custom_gradient` end with the graphs that they are registered in."""

    def register(registry: object, gradient: _Gradient, name: str | None = None) -> None:
        owners: list[Any] = [*graphs.being_built()] if gradients.is_custom(registry, name) else []
        if name is None or not owners:
            return plain(registry, gradient, name)
        known = weakref.ref(gradient)

        def weakly(operation: Any, *upstream: Any) -> Any:
            own = known()
            assert own is not None  # Who has the operation has a graph that has the gradient.
            found = own(operation, *upstream)
            if len(found) != len(operation.inputs):
                return found  # TensorFlow refuses it by name.
            return [_in_graph(one, tensor) for one, tensor in zip(found, operation.inputs, strict=True)]

        plain(registry, weakly, name)
        for graph in owners:  # A plain graph takes attributes, though it shows no `__dict__`.
            graph._ipu_gradients = [*getattr(graph, "_ipu_gradients", ()), gradient]
        lifetimes.call_later(gradient, lambda: gradients.forget(name))
        return None

    return register


_PARTIALS = "ipu_partials_type"


def computed_by(
    attributes: Mapping[str, str], after: Mapping[str, str] | None = None
) -> contextlib.AbstractContextManager[None]:
    """A block whose operations have these attributes, and whose gradients have those that say how to compute."""
    if not tf.executing_eagerly() and not _instruction_attributes.INHERITED.isdisjoint(attributes):
        graph = tf.compat.v1.get_default_graph()
        follow_operations(graph)
        _floating_point.ask(graph)
    return _instruction_attributes.set_to(attributes, after)


def summed_in(partials: tf.DType, type_: tf.DType | str) -> contextlib.AbstractContextManager[None]:
    """A block in which a layer with a type of partial sums multiplies; a scope around it takes precedence."""
    in_half = partials == tf.float16
    known = in_half or _trace_context.floating_point_now().partials_matmul == "half"
    if (
        not known
        or type_ != tf.float16
        or not _trace_context.is_tracing()
        or _PARTIALS in _instruction_attributes.now()
    ):
        return contextlib.nullcontext()
    return computed_by({_PARTIALS: "half" if in_half else "float"})
