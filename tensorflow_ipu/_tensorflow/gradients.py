"""Gradients: of tensors of one graph in another, of operations of ours, and what watches for them."""

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
    """The gradients of tensors of `graph`, made in the current graph; stands on `gradients_util._GradientsHelper`."""
    # `tf.gradients` wants both in one graph. Without it: copy the operations to the current graph, and call it there.
    return gradients_util._GradientsHelper(list(ys), list(xs), grad_ys=upstream, src_graph=graph)


def has_gradient(tensor: tf.Tensor) -> bool:
    """Returns True if gradients flow through a tensor, resources included; stands on `backprop_util.IsTrainable`."""
    # Without it: floating and complex types, resources and variants.
    return backprop_util.IsTrainable(tensor)


def unrecorded() -> AbstractContextManager[None]:
    """A block that no tape records; stands on `record.stop_recording`."""
    # `tape.stop_recording()` is for one tape. Without it: `tf.stop_gradient` on what leaves the block.
    return record.stop_recording()


def record_as(
    kind: str, results: Sequence[tf.Tensor], inputs: Sequence[tf.Tensor], gradient: Callable[..., Any]
) -> None:
    """Records `results` as one operation of `inputs` with this gradient; stands on `record.record_operation`."""
    # `tf.custom_gradient` calls the function under a tape of its own. Without it: that one.
    record.record_operation(kind, results, inputs, gradient)


def overridden(graph: tf.Graph, kind: str, gradient: Callable[..., Any]) -> AbstractContextManager[None]:
    """A block that gives new operations of a kind another gradient; stands on `Graph._override_gradient_function`."""
    # The public `Graph.gradient_override_map` keeps each function for ever under a name. Without it: that one.
    return graph._override_gradient_function({kind: gradient})


def of_call(program: functions.ConcreteFunction) -> Callable[..., tuple[Gradient | None, ...]]:
    """Returns the gradient `(op, *upstream)` of a concrete function's call; stands on `_delayed_rewrite_functions`."""
    # Without it: no gradient, which replicas refuse anyway, and one replica has by `tf.custom_gradient`.
    return program._delayed_rewrite_functions._rewrite_forward_and_call_backward


def note_use_of(variable: tf.Variable) -> None:
    """Tells tapes and functions that a variable is used next; stands on `resource_variable_ops.variable_accessed`."""
    # `tf.Variable` calls it at each read. Without it: `variable.read_value()`, whose result nobody uses.
    resource_variable_ops.variable_accessed(variable)


# The gradients that are registered, by kind of operation. `tf.RegisterGradient` alone is public, and only adds some. When it
# is gone: no gradient is placed, and those of `tf.custom_gradient` stay for ever.
REGISTRY: Any = ops.gradient_registry


def own_gradient(operation: tf.Operation) -> Callable[..., Any] | None:
    """Returns the gradient that one operation has for itself, or None; stands on `Operation._gradient_function`."""
    # `Graph.gradient_override_map` and calls of functions set it. Without it: None, and only registered gradients can be
    # placed.
    return operation._gradient_function


def recorded_attributes(operation: Any) -> Sequence[Any]:
    """Names and values of attributes that a tape recorded, in turn; stands on `backprop._MockOp.attrs`."""
    # The public `get_attr` refuses attributes that the definition lacks. Empty for operations of graphs, and where nothing was
    # recorded, as when it is gone.
    return getattr(operation, "attrs", None) or ()


def is_custom(name: str | None) -> bool:
    """Returns True for the name of a graph's `tf.custom_gradient`; stands on `custom_gradient.generate_name`."""
    # When it gives other names: False, and such gradients stay for ever.
    return (name or "").startswith("CustomGradient-")


def forget(name: str) -> None:
    """Takes a gradient out of the registry; stands on `Registry._registry`. When it is gone: an entry stays, of no size."""
    REGISTRY._registry.pop(name, None)
