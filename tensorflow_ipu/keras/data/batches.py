"""What a batch of a model's data looks like, where no data is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tensorflow_ipu.keras._keras import internals, keras

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested

_SPARSE = frozenset({"sparse_categorical_crossentropy", "SparseCategoricalCrossentropy"})
# Their labels have shapes that nothing of the model tells.
_OF_OTHER_SHAPES = frozenset({"ctc", "CTC"})


def given_batch(spec: Nested, batch_size: int | None) -> Nested:
    structure: Any = spec.element_spec if isinstance(spec, tf.data.Dataset) else spec
    return tf.nest.map_structure(lambda leaf: _filled(_spec_of(leaf), batch_size, "spec"), structure)


def seen_batch(seen: Nested, batch_size: int | None) -> Nested:
    """A batch like one that a model saw, of another size if `batch_size` says one."""

    def sized(leaf: tf.TensorSpec | None) -> tf.TensorSpec | None:
        return leaf if leaf is None or batch_size is None else tf.TensorSpec([batch_size, *leaf.shape[1:]], leaf.dtype)

    return tf.nest.map_structure(sized, seen)


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
    """The inputs of a model in a batch, of which `keras.Input` or `build` have told."""
    symbols = _symbols(model)
    if symbols is None:
        raise ValueError(
            f"nothing tells the shape of the inputs of model `{model.name}`: begin it with `keras.Input`, or call its"
            " `build`, or give `spec`, a dataset or a batch of `tf.TensorSpec` as `(x, y)`"
        )

    def spec(symbol: Any) -> tf.TensorSpec:
        return _filled(tf.TensorSpec(symbol.shape, symbol.dtype), batch_size, "keras.Input")

    specs: Any = tf.nest.map_structure(spec, symbols)
    return tuple(specs) if isinstance(specs, list) else specs  # Of a list, a dataset would make one tensor.


def _symbols(model: keras.Model) -> Nested:
    if isinstance(model, keras.Sequential):
        return model.inputs[0] if model.built and internals.functional_of(model) is not None else None
    structure = internals.input_structure(model)
    if structure is not None:
        return structure
    shapes = list((internals.built_shapes(model) or {}).values())
    if len(shapes) != 1:  # Of several arguments, data is no more than one.
        return None
    return _specs(shapes[0])


def _specs(shapes: Any) -> Nested:
    """The specs of inputs of these shapes: of one, or of a structure of them."""
    if isinstance(shapes, Mapping):
        return {name: _specs(shape) for name, shape in shapes.items()}
    if all(size is None or isinstance(size, int) for size in shapes):
        return tf.TensorSpec(shapes, tf.float32)
    return type(shapes)(map(_specs, shapes))


def _filled(spec: tf.TensorSpec, batch_size: int | None, source: str) -> tf.TensorSpec:
    shape: list[int | None] = spec.shape.as_list() if spec.shape.rank is not None else [None, None]
    if batch_size is not None and shape and shape[0] is not None and shape[0] != batch_size:
        raise ValueError(
            f"`batch_size` is {batch_size}, and `{source}` says that a batch has {shape[0]}: leave `batch_size` out"
        )
    if shape and shape[0] is None:
        if batch_size is None:
            raise ValueError(
                f"`batch_size` is missing: nothing else tells how many samples a batch of {spec.shape} has"
            )
        shape[0] = batch_size
    if None in shape:
        raise ValueError(
            f"`{source}` has the shape {spec.shape}, and a program for an IPU has static shapes: give `spec`, a batch of"
            " `tf.TensorSpec` as `(x, y)`, in which all of them are known"
        )
    return tf.TensorSpec(shape, spec.dtype)


def labels_of(model: keras.Model, inputs: Nested) -> Nested:
    """The labels of a batch, as the losses that a model was compiled with want them."""
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
        each = losses if isinstance(losses, Sequence) and not isinstance(losses, str) else [losses] * len(outputs)
        return tuple(_label(*pair) for pair in zip(each, outputs, strict=True))
    return _label(losses[0] if isinstance(losses, list) else losses, outputs)


def _label(loss: Any, output: keras.KerasTensor) -> tf.TensorSpec:
    found: Any = keras.losses.get(loss) if isinstance(loss, str) else loss
    kind: Any = found if hasattr(found, "__name__") else type(found)
    own = found is not None and not kind.__module__.startswith(f"{keras.__name__}.")
    if own or kind.__name__ in _OF_OTHER_SHAPES:
        raise ValueError(
            f"the loss {loss!r} does not tell the shape of its labels: give `spec`, a dataset or a batch of `tf.TensorSpec`,"
            " as `(x, y)`"
        )
    if kind.__name__ in _SPARSE:
        return tf.TensorSpec(output.shape[:-1], tf.int32)
    return tf.TensorSpec(output.shape, tf.float32)
