"""Writes the steps of a model as a SavedModel that plain TensorFlow serves."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu.serving import serving_steps

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested


class _Served(tf.Module):
    """What the SavedModel has: the function, and all that it uses."""


def write(
    predict: Callable[..., Nested],
    steps: Sequence[Callable[..., Nested] | None],
    requests: Sequence[tf.TensorSpec],
    of_predict: Sequence[tf.TensorSpec],
    export_dir: str | os.PathLike[str],
    output_names: str | list[str] | None,
    postprocessing_step_signature: Sequence[tf.TensorSpec] | None,
    purge_export_dir: bool,
) -> Callable[..., dict[str, tf.Tensor]]:
    """Writes a SavedModel of one signature, and reads it back."""
    if not tf.executing_eagerly():
        raise RuntimeError("models are exported in eager execution, and a graph is being built: export outside of it")
    before, behind = steps
    names = serving_steps.names(output_names)
    if behind is not None and postprocessing_step_signature is not None:
        serving_steps.check_signature("postprocessing_step_signature", postprocessing_step_signature)

    def serve(*arguments: tf.Tensor) -> dict[str, tf.Tensor]:
        values: Nested = arguments
        if before is not None:
            values = serving_steps.checked("`preprocessing_step`", before(*values), of_predict)
        results = serving_steps.checked("`predict_step`", predict(*values), postprocessing_step_signature)
        if behind is not None:
            results = serving_steps.checked("`postprocessing_step`", behind(*results), None)
        return serving_steps.named(results, names)

    module: Any = _Served()
    module.predict = tf.function(serve, input_signature=list(requests))
    # So that the graph names no IPU, whatever scope is around.
    with tf.device(None):
        traced = module.predict.get_concrete_function()
    _refuse_operations_of_ours(traced.graph)
    module.used = [*traced.graph.variables, *_used_by(predict), *_used_by(before), *_used_by(behind)]
    folder = serving_steps.prepared_folder(export_dir, purge_export_dir)
    tf.saved_model.save(module, str(folder), signatures=module.predict)
    loaded: Any = tf.saved_model.load(str(folder))
    loaded.predict.model = loaded  # Its variables live as long as it does.
    return loaded.predict


def _refuse_operations_of_ours(graph: tf.Graph) -> None:
    """Refuses what an IPU program alone can do: plain TensorFlow would not even load the model."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    found = sorted({node.op for node in nodes if node.op.startswith("Ipu")})
    if found:
        raise ValueError(
            f"the model uses {', '.join(f'`{one}`' for one in found)}, which only programs on IPUs have, and TensorFlow serves"
            " it without: leave collectives, queues and parts of the host out of what is exported"
        )


def _used_by(step: Callable[..., Nested] | None) -> Iterator[Any]:
    """Tables and other things of TensorFlow's that a function has from around it, for the SavedModel to hold."""
    function: Any = getattr(step, "python_function", step)
    if not inspect.isroutine(function):
        if isinstance(function, tf.Module):
            yield function
        return
    owner = getattr(function, "__self__", None)
    try:
        around = inspect.getclosurevars(function)
    except (TypeError, ValueError):  # A function of C.
        return
    for value in (owner, *around.nonlocals.values(), *around.globals.values()):
        if isinstance(value, (tf.Module, tf.lookup.StaticHashTable, tf.lookup.experimental.DenseHashTable)):
            yield value
        elif callable(value) and hasattr(value, "python_function"):
            yield from _used_by(value)
