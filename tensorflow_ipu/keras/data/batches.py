"""Derives the spec of a batch from a user's spec, from an earlier batch, or from a model and its losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tensorflow_ipu.keras._keras import internals, keras

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested

_SPARSE = frozenset({"sparse_categorical_crossentropy", "SparseCategoricalCrossentropy"})
# The shapes of the labels of these losses do not follow from the model.
_UNKNOWN_LABEL_SHAPES = frozenset({"ctc", "CTC"})


def given_batch(spec: Nested, batch_size: int | None) -> Nested:
    structure: Any = spec.element_spec if isinstance(spec, tf.data.Dataset) else spec
    return tf.nest.map_structure(lambda leaf: _filled(_spec_of(leaf), batch_size, "spec"), structure)


def seen_batch(batch: Nested, batch_size: int | None) -> Nested:
    """Returns the spec of a batch that a model saw, with another batch size unless `batch_size` is None."""

    def sized(leaf: tf.TensorSpec | None) -> tf.TensorSpec | None:
        return leaf if leaf is None or batch_size is None else tf.TensorSpec([batch_size, *leaf.shape[1:]], leaf.dtype)

    return tf.nest.map_structure(sized, batch)


def _spec_of(leaf: Any) -> tf.TensorSpec:
    if isinstance(leaf, tf.TensorSpec):
        return leaf
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise TypeError(
            f"`spec` must be a dataset, or hold `tf.TensorSpec`, tensors or arrays, as `(x, y)`; but it holds {leaf!r}"
        )
    dtype = leaf.dtype if isinstance(leaf.dtype, tf.DType) else tf.as_dtype(np.dtype(leaf.dtype))
    return tf.TensorSpec(leaf.shape, dtype)


def inputs_of(model: keras.Model, batch_size: int | None) -> Nested:
    """Returns the spec of the inputs in a batch, from `keras.Input` or `build` of the model."""
    symbols = _symbols(model)
    if symbols is None:
        raise ValueError(
            f"the shape of the inputs of model `{model.name}` is unknown: begin it with `keras.Input`, or call its"
            " `build`, or pass `spec`, a dataset or a batch of `tf.TensorSpec` as `(x, y)`"
        )

    def spec(symbol: Any) -> tf.TensorSpec:
        return _filled(tf.TensorSpec(symbol.shape, symbol.dtype), batch_size, "keras.Input")

    specs: Any = tf.nest.map_structure(spec, symbols)
    return tuple(specs) if isinstance(specs, list) else specs  # A dataset would convert a list to one tensor.


def _symbols(model: keras.Model) -> Nested:
    if isinstance(model, keras.Sequential):
        return model.inputs[0] if model.built and internals.functional_of(model) is not None else None
    structure = internals.input_structure(model)
    if structure is not None:
        return structure
    shapes = list((internals.built_shapes(model) or {}).values())
    if len(shapes) != 1:  # Data is passed as one argument.
        return None
    return _specs(shapes[0])


def _specs(shapes: Any) -> Nested:
    """Returns the specs of inputs of a shape, or of a structure of shapes."""
    if isinstance(shapes, Mapping):
        return {name: _specs(shape) for name, shape in shapes.items()}
    if all(size is None or isinstance(size, int) for size in shapes):
        return tf.TensorSpec(shapes, tf.float32)
    return type(shapes)(map(_specs, shapes))


def _filled(spec: tf.TensorSpec, batch_size: int | None, source: str) -> tf.TensorSpec:
    shape: list[int | None] = spec.shape.as_list() if spec.shape.rank is not None else [None, None]
    if batch_size is not None and shape and shape[0] is not None and shape[0] != batch_size:
        raise ValueError(f"`batch_size` is {batch_size}, but `{source}` has batches of {shape[0]}: omit `batch_size`")
    if shape and shape[0] is None:
        if batch_size is None:
            raise ValueError(f"`batch_size` is missing, and the shape {spec.shape} does not contain it")
        shape[0] = batch_size
    if None in shape:
        raise ValueError(
            f"`{source}` has the shape {spec.shape}, but a program for an IPU has static shapes: pass `spec`, a batch of"
            " `tf.TensorSpec` with static shapes, as `(x, y)`"
        )
    return tf.TensorSpec(shape, spec.dtype)


def labels_of(model: keras.Model, inputs: Nested) -> Nested:
    """Returns the spec of the labels in a batch, as the losses of the compiled model expect them."""
    losses: Any = model.loss
    if losses is None:
        return None
    symbols = tf.nest.map_structure(lambda leaf: internals.symbol(leaf.shape, leaf.dtype), inputs)
    outputs: Any = internals.called_with_symbols(model, symbols, training=False)
    if isinstance(losses, Mapping) and isinstance(outputs, Sequence):
        losses = [losses.get(name) for name in model.output_names]
    if isinstance(outputs, Mapping):
        return {
            name: _label(losses[name] if isinstance(losses, Mapping) else losses, output)
            for name, output in outputs.items()
        }
    if isinstance(outputs, Sequence):
        losses_by_output = (
            losses if isinstance(losses, Sequence) and not isinstance(losses, str) else [losses] * len(outputs)
        )
        return tuple(_label(*pair) for pair in zip(losses_by_output, outputs, strict=True))
    return _label(losses[0] if isinstance(losses, list) else losses, outputs)


def _label(loss: Any, output: keras.KerasTensor) -> tf.TensorSpec:
    loss_object: Any = keras.losses.get(loss) if isinstance(loss, str) else loss
    kind: Any = loss_object if hasattr(loss_object, "__name__") else type(loss_object)
    is_own = loss_object is not None and not kind.__module__.startswith(f"{keras.__name__}.")
    if is_own or kind.__name__ in _UNKNOWN_LABEL_SHAPES:
        raise ValueError(
            f"the shape of the labels of loss {loss!r} is unknown: pass `spec`, a dataset or a batch of `tf.TensorSpec`,"
            " as `(x, y)`"
        )
    if kind.__name__ in _SPARSE:
        return tf.TensorSpec(output.shape[:-1], tf.int32)
    return tf.TensorSpec(output.shape, tf.float32)
