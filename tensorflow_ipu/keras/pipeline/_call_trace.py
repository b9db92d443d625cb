"""The graph of a subclassed model: the calls of layers that its `call` makes, as a functional model has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from tensorflow_ipu.keras import _keras_internals as internals
from tensorflow_ipu.keras._keras_internals import Functional
from tensorflow_ipu.keras.pipeline.places import nodes_of

if TYPE_CHECKING:
    from tensorflow_ipu._types import Nested
    from tensorflow_ipu.strategy import IPUStrategyV1


def trace(model: keras.Model, strategy: IPUStrategyV1, symbols: Nested) -> Functional:
    """Calls a model with symbols, and notes what it does with them.

    Args:
      model: A subclassed model.
      strategy: Its strategy.
      symbols: What it is called with: a structure of `keras.KerasTensor`.

    Returns:
      A functional model of the same layers.

    Raises:
      NotImplementedError: The model has no `call`.
      RuntimeError: Its `call` does not take symbols, or does other things in training.
    """
    if type(model).call in (keras.Model.call, keras.layers.Layer.call):
        raise NotImplementedError(f"the function `call` for the model {model.name} has not been implemented")
    with strategy.scope():
        if not all(layer.built for layer in internals.all_layers(model)):
            internals.called_with_symbols(model, symbols, training=False)
        graph = _trace(model, symbols, None)
        if internals.takes_training(model):
            counts = {id(layer): len(internals.calls_of(layer)) for layer in internals.all_layers(model)}
            training = _trace(model, symbols, True)
            for layer in internals.all_layers(model):
                del internals.calls_of(layer)[counts.get(id(layer), 0) :]
            if _calls(graph) != _calls(training):
                raise RuntimeError(
                    f"the function `call` for the model {model.name} calls other layers in training, and a pipeline has the"
                    " same in all its programs: leave the difference to layers, as `keras.layers.Dropout` does"
                )
    return graph


def symbols_of_built(model: keras.Model) -> Nested:
    """What a model was built for, as symbols.

    Args:
      model: A subclassed model.

    Raises:
      RuntimeError: It is not built, or was built without shapes.
    """
    shapes = internals.built_shapes(model)
    if not shapes:
        raise RuntimeError(
            f"Cannot tell the layers of model `{model.name}`, which is neither sequential nor functional and was not built:"
            " its layers are known once it was called. Build it with `build(input_shape)`, call it on a batch, or fit it"
        )
    return _symbols(next(iter(shapes.values())), model.input_dtype)


def _symbols(shape: Nested, dtype: str) -> Nested:
    if isinstance(shape, dict):
        return {name: _symbols(part, dtype) for name, part in shape.items()}
    if all(size is None or isinstance(size, int) for size in shape):
        return keras.KerasTensor(tuple(shape), dtype)
    return type(shape)(_symbols(part, dtype) for part in shape)


def _trace(model: keras.Model, symbols: Nested, training: bool | None) -> Functional:
    # Of any batch size: the number of examples is the data's.
    inputs = keras.tree.map_structure(lambda symbol: keras.Input(symbol.shape[1:], dtype=symbol.dtype), symbols)
    named = {"training": training} if internals.takes_training(model) else {}
    internals.forget_losses(model)
    try:
        graph = Functional(inputs, model.call(inputs, **named), name=f"{model.name}_calls")
    except (TypeError, ValueError, NotImplementedError, AttributeError) as exc:
        raise RuntimeError(
            f"the function `call` for the model {model.name} cannot be cut into pipeline stages: {exc}. It is called with"
            " symbols, as functional models are made: let it use layers and `keras.ops` on its one argument, and not"
            " TensorFlow's functions"
        ) from exc
    if internals.added_losses(model):
        internals.forget_losses(model)
        raise RuntimeError(
            f"the function `call` for the model {model.name} adds a loss to the model, which no pipeline stage has: let a"
            " layer add it"
        )
    return graph


def _calls(graph: Functional) -> list[int | str]:
    operations = [node.operation for node in nodes_of(graph)]
    return [
        id(operation) if isinstance(operation, keras.layers.Layer) else type(operation).__name__
        for operation in operations
    ]
