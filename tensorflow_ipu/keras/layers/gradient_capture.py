"""Wrappers of layers that capture gradients during the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tensorflow_ipu.keras._keras import keras
from tensorflow_ipu.ops import gradient_capture

if TYPE_CHECKING:
    import tensorflow as tf

    from tensorflow_ipu._base.types import Config, Nested

__all__ = ["CaptureActivationGradients", "CaptureUpstreamGradients"]


@keras.saving.register_keras_serializable(package="tensorflow_ipu")
class CaptureUpstreamGradients(keras.layers.Wrapper):
    """Computes a layer, and captures the gradient of its result.

    The gradient is in the `captured_gradients` of the `GradientCaptureTape` in which the layer is called. Outside of
    such a tape, nothing is captured.
    """

    def __init__(self, layer: keras.layers.Layer, tag: str | None = None, **kwargs: Any) -> None:
        """Creates the wrapper of a Keras layer.

        `tag` is the key of the gradient, and the default name of the wrapper. The default of `tag` is the layer's name
        with "_cug" appended, such as "dense_cug".

        Raises:
          ValueError: `layer` is not a Keras layer.
        """
        _check_layer(layer)
        self.tag = layer.name + "_cug" if tag is None else tag
        super().__init__(layer, **{"name": self.tag, **kwargs})
        self.supports_masking = True

    def call(self, inputs: Nested, *args: Any, **kwargs: Any) -> Nested:
        """Computes the layer."""
        result = self.layer(inputs, *args, **kwargs)
        return _captured(result, self.tag)

    def get_config(self) -> Config:
        return {**super().get_config(), "tag": self.tag}


@keras.saving.register_keras_serializable(package="tensorflow_ipu")
class CaptureActivationGradients(keras.layers.Wrapper):
    """Computes a layer, and captures the gradients of the inputs of its activations.

    They are in the `captured_gradients` of the `GradientCaptureTape` in which the layer is called. The key is the tag
    with "_" and the name of the argument appended, such as "dense_cag_activation". Outside of such a tape, nothing is
    captured. Recurrent layers are rejected, because their activations are in a loop.
    """

    def __init__(self, layer: keras.layers.Layer, tag: str | None = None, **kwargs: Any) -> None:
        """Creates the wrapper of a copy of a Keras layer with activations.

        The keys of gradients begin with `tag`, which is also the default name of the wrapper. The default of `tag` is the
        layer's name with "_cag" appended, such as "dense_cag".

        Raises:
          ValueError: `layer` is not a Keras layer, or has no activation.
        """
        if not self.layer_is_supported(layer):
            raise ValueError(
                f"`layer` is `{layer.name}`, which has no activation of its own; `CaptureUpstreamGradients` captures"
                " the gradient of its result"
            )
        self.tag = layer.name + "_cag" if tag is None else tag
        original = keras.saving.serialize_keras_object(layer)
        config = layer.get_config()
        for key in _activations(layer):
            config[key] = self._capturing(getattr(layer, key), f"{self.tag}_{key}")
        copy = type(layer).from_config(config)
        if layer.built:
            build_config = layer.get_build_config()
            assert build_config is not None
            copy.build(build_config["input_shape"])
            copy.set_weights(layer.get_weights())
        super().__init__(copy, **{"name": self.tag, **kwargs})
        self._serialized_layer = lambda: original  # A function, because Keras would wrap a dict.
        self.supports_masking = True

    @staticmethod
    def layer_is_supported(layer: keras.layers.Layer) -> bool:
        """Returns True if a layer has activations whose gradients can be captured.

        Raises:
          ValueError: `layer` is not a Keras layer.
        """
        _check_layer(layer)
        return bool(_activations(layer))

    def call(self, inputs: Nested, *args: Any, **kwargs: Any) -> Nested:
        """Computes the layer."""
        return self.layer(inputs, *args, **kwargs)

    def get_config(self) -> Config:
        return {**keras.layers.Layer.get_config(self), "layer": self._serialized_layer(), "tag": self.tag}

    @staticmethod
    def _capturing(activation: Callable[..., tf.Tensor], tag: str) -> Callable[..., tf.Tensor]:
        return lambda x: activation(_captured(x, tag))


def _captured(tensors: Nested, tag: str) -> Nested:
    if not gradient_capture.num_gradient_collection_tapes():
        return tensors
    return gradient_capture.capture_upstream_gradients(tensors, tag)


def _check_layer(layer: object) -> None:
    if not isinstance(layer, keras.layers.Layer):
        raise ValueError(f"`layer` must be a Keras layer, but is `{layer!r}`")


def _activations(layer: keras.layers.Layer) -> list[str]:
    """Returns the names of a layer's arguments that are activations; none for recurrent layers."""
    if isinstance(layer, keras.layers.RNN):
        return []
    return [key for key in layer.get_config() if "activation" in key and callable(getattr(layer, key, None))]
