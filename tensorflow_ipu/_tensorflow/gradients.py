"""Gradients: of tensors of one graph in another, of operations of ours, and what watches for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tensorflow.python.eager import backprop_util, context, record
from tensorflow.python.framework import ops
from tensorflow.python.ops import gradients_util, resource_variable_ops

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import tensorflow as tf

    from tensorflow_ipu._base.types import Gradient
    from tensorflow_ipu._tensorflow import functions


def between(
    ys: Sequence[tf.Tensor], xs: Sequence[tf.Tensor], upstream: Sequence[Gradient | None] | None, graph: tf.Graph
) -> list[Gradient | None]:
    """The gradients of tensors of `graph` with respect to others of it, made in the graph that is being built.

    Stands on `gradients_util._GradientsHelper`: `tf.gradients` wants both in the one graph. When it is gone: copy the
    operations between `xs` and `ys` to the graph that is being built, and call `tf.gradients` there.
    """
    return gradients_util._GradientsHelper(list(ys), list(xs), grad_ys=upstream, src_graph=graph)


def has_gradient(tensor: tf.Tensor) -> bool:
    """Whether a tensor is of a type that gradients flow through, resources of variables included.

    Stands on `backprop_util.IsTrainable`: `dtype.is_floating` leaves out resources and variants. When it is gone: those,
    floating and complex types.
    """
    return backprop_util.IsTrainable(tensor)


def unrecorded() -> AbstractContextManager[None]:
    """A block that no tape records; stands on `record.stop_recording`.

    `tape.stop_recording()` is public, and for one tape that one has at hand. When it is gone: `tf.stop_gradient` on
    what leaves the block.
    """
    return record.stop_recording()


def record_as(
    kind: str, results: Sequence[tf.Tensor], inputs: Sequence[tf.Tensor], gradient: Callable[..., Any]
) -> None:
    """Has the tapes around take `results` for those of one operation of `inputs`, with this gradient.

    Stands on `record.record_operation`, which Keras has as `tf.__internal__.record_gradient` with another meaning of its
    arguments; `tf.custom_gradient` calls the function under a tape of its own. When it is gone: that one.
    """
    record.record_operation(kind, results, inputs, gradient)


def is_watched() -> bool:
    """Whether a tape, or a callback of TensorFlow's debugger, watches what this thread runs.

    Stands on `record.could_possibly_record` and `context.op_callbacks`; nobody can be asked in public. When it is gone:
    True, and programs with handlers of signals run on the main thread.
    """
    current: Any = context.context()
    return record.could_possibly_record() or bool(current.op_callbacks)


def overridden(graph: tf.Graph, kind: str, gradient: Callable[..., Any]) -> AbstractContextManager[None]:
    """A block in which operations of this kind that are put into `graph` have another gradient.

    Stands on `Graph._override_gradient_function`; `Graph.gradient_override_map` is public, and keeps each function for
    ever under a name. When it is gone: that one.
    """
    return graph._override_gradient_function({kind: gradient})


def of_call(program: functions.ConcreteFunction) -> Callable[..., tuple[Gradient | None, ...]]:
    """The gradient that TensorFlow has for the call of a concrete function: a function `(op, *upstream)`.

    Stands on `ConcreteFunction._delayed_rewrite_functions` and `_rewrite_forward_and_call_backward`. When it is gone:
    no gradient, which replicas refuse in any case, and a program of one replica in a graph has by `tf.custom_gradient`.
    """
    return program._delayed_rewrite_functions._rewrite_forward_and_call_backward


def note_use_of(variable: tf.Variable) -> None:
    """Has tapes and functions around know that what comes next uses a variable.

    Stands on `resource_variable_ops.variable_accessed`, which `tf.Variable` calls itself at each read. When it is gone:
    `variable.read_value()`, whose result nobody uses.
    """
    resource_variable_ops.variable_accessed(variable)


def registered_for(kind: str) -> Callable[..., Any]:
    """The gradient that is registered for a kind of operation; stands on `ops.gradient_registry`."""
    registry: Any = ops.gradient_registry
    return registry.lookup(kind)


def own_gradient(operation: tf.Operation) -> Callable[..., Any] | None:
    """The gradient that an operation has for itself alone, in the place of the registered one; None where it has none.

    Stands on `Operation._gradient_function`, which `Graph.gradient_override_map` and calls of functions set, and which is
    asked of nobody in public. When it is gone: None, and only registered gradients can be placed.
    """
    return operation._gradient_function


def recorded_attributes(operation: Any) -> Sequence[Any]:
    """What a tape has recorded of the attributes of what it differentiates: names and values in turn.

    Stands on `backprop._MockOp.attrs`; its public `get_attr` refuses attributes that are not in the operation's definition.
    When it is gone: nothing is known of the operations of tapes. Empty for operations of graphs, and
    where a tape has recorded none.
    """
    return getattr(operation, "attrs", None) or ()


def is_registry(registry: object) -> bool:
    """Whether a registry of TensorFlow's is that of gradients; stands on `ops.gradient_registry`."""
    return registry is ops.gradient_registry


def is_custom(registry: object, name: str | None) -> bool:
    """Whether a name of a registry is that of what `tf.custom_gradient` has made in a graph, and of nothing else.

    Stands on `custom_gradient.generate_name`. When it gives other names: False, and such gradients stay for ever.
    """
    return is_registry(registry) and (name or "").startswith("CustomGradient-")


def forget(name: str) -> None:
    """Takes a gradient out of the registry; stands on `Registry._registry`. When it is gone: an entry stays, of no size."""
    ops.gradient_registry._registry.pop(name, None)
