"""Configurations of layers, made from the arguments of their constructors."""

from __future__ import annotations

import inspect
from typing import Any

from tensorflow_ipu.keras._keras import keras

_OBJECTS = ("initializer", "regularizer", "constraint")


def arguments_of(layer: keras.layers.Layer, kind: type) -> dict[str, Any]:
    """Returns the arguments of the constructor of `kind` as a configuration, read from attributes of the same names.

    `trainable` and `**kwargs` are left out: Keras adds them to the configuration.
    """
    names = [
        name for name in inspect.signature(kind.__init__).parameters if name not in ("self", "trainable", "kwargs")
    ]
    return {name: _serialized(name, getattr(layer, name)) for name in names}


def _serialized(name: str, value: Any) -> Any:
    if name.endswith("activation"):
        return keras.activations.serialize(value)
    return keras.saving.serialize_keras_object(value) if name.endswith(_OBJECTS) else value
