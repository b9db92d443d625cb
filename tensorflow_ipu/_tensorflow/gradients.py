"""Computes gradients across graphs, and replaces, records and looks up gradients of operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import backprop_util, record
from tensorflow.python.framework import ops
from tensorflow.python.ops import gradients_util, resource_variable_ops

from tensorflow_ipu._base.types import Gradient
from tensorflow_ipu._tensorflow import functions


def between(
    ys: Sequence[tf.Tensor], xs: Sequence[tf.Tensor], upstream: Sequence[Gradient | None] | None, graph: tf.Graph
) -> list[Gradient | None]:
    """Returns gradients of tensors of `graph`, computed in the current graph. Uses the private `_GradientsHelper`."""
    # `tf.gradients` requires that `graph` is the current one. Without it: copy the operations to the current graph, and
    # call `tf.gradients` there.
    return gradients_util._GradientsHelper(list(ys), list(xs), grad_ys=upstream, src_graph=graph)


def has_gradient(tensor: tf.Tensor) -> bool:
    """Returns True if gradients flow through a tensor or resource. Uses the private `backprop_util.IsTrainable`."""
    # Without it: return True for floating and complex types, resources and variants.
    return backprop_util.IsTrainable(tensor)


def unrecorded() -> AbstractContextManager[None]:
    """Runs the block without recording it on any tape. Uses the private `record.stop_recording`."""
    # The public `tape.stop_recording()` affects one tape. Without it: call `tf.stop_gradient` on the results of the
    # block.
    return record.stop_recording()


def record_as(
    kind: str, results: Sequence[tf.Tensor], inputs: Sequence[tf.Tensor], gradient: Callable[..., Any]
) -> None:
    """Records `results` as one operation on `inputs` with this gradient. Uses the private `record.record_operation`."""
    # `tf.custom_gradient` calls the function under another tape. Without it: use `tf.custom_gradient`.
    record.record_operation(kind, results, inputs, gradient)


def overridden(graph: tf.Graph, kind: str, gradient: Callable[..., Any]) -> AbstractContextManager[None]:
    """Sets `gradient` as the gradient of all operations of type `kind` that the block creates.

    Uses the private `Graph._override_gradient_function`.
    """
    # The public `Graph.gradient_override_map` registers each function under a name, for ever. Without it: use that.
    return graph._override_gradient_function({kind: gradient})


def of_call(program: functions.ConcreteFunction) -> Callable[..., tuple[Gradient | None, ...]]:
    """Returns the gradient of a concrete function's call, a function of `(op, *upstream)`.

    Uses the private `ConcreteFunction._delayed_rewrite_functions`.
    """
    # Without it: programs on one replica need `tf.custom_gradient`. Programs on several replicas have no gradient
    # anyway.
    return program._delayed_rewrite_functions._rewrite_forward_and_call_backward


def note_use_of(variable: tf.Variable) -> None:
    """Reports the use of a variable to tapes and functions.

    Uses the private `resource_variable_ops.variable_accessed`.
    """
    # `tf.Variable` calls it in each read. Without it: call `variable.read_value()` and ignore the result.
    resource_variable_ops.variable_accessed(variable)


# The registered gradients by type of operation. The public `tf.RegisterGradient` can only add gradients. Without it:
# gradients are not placed on their operations' IPUs, and gradients of `tf.custom_gradient` stay registered for ever.
REGISTRY: Any = ops.gradient_registry


def own_gradient(operation: tf.Operation) -> Callable[..., Any] | None:
    """Returns the gradient set on this one operation, or None. Uses the private `Operation._gradient_function`."""
    # `Graph.gradient_override_map` and calls of functions set it. Without it: return None. Then only registered
    # gradients can be placed.
    return operation._gradient_function


def recorded_attributes(operation: Any) -> Sequence[Any]:
    """Returns the attributes that a tape recorded: `(name, value, name, value, ...)`.

    Returns `()` for operations of graphs and if nothing was recorded. Uses the private `backprop._MockOp.attrs`.
    """
    # The public `get_attr` raises for attributes that the operation's definition lacks. Without it: return `()`.
    return getattr(operation, "attrs", None) or ()


def is_custom(name: str | None) -> bool:
    """Returns True if `name` is that of a `tf.custom_gradient` in a graph. Uses the private `generate_name`."""
    # If TensorFlow changes these names, this returns False, and such gradients stay registered for ever.
    return (name or "").startswith("CustomGradient-")


def forget(name: str) -> None:
    """Removes a gradient from the registry. Uses the private `Registry._registry`. Without it: a small entry stays."""
    REGISTRY._registry.pop(name, None)
