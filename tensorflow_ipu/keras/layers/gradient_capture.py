"""Wrappers that capture gradients on their way back through a layer."""

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
    """Computes a layer, and captures the gradient that comes back to its result.

    It is in the `captured_gradients` of the `GradientCaptureTape` that the layer is called in. Where there is none,
    nothing is captured.
    """

    def __init__(self, layer: keras.layers.Layer, tag: str | None = None, **kwargs: Any) -> None:
        """Creates the wrapper of a Keras layer.

        The gradient is found under `tag`, by default the layer's name with "_cug" appended, which is the wrapper's name too.

        Raises:
          ValueError: `layer` is none.
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
    """Computes a layer, and captures the gradient of what goes into its activation.

    It is in the `captured_gradients` of the `GradientCaptureTape` that the layer is called in, under the tag, with
    "_activation" appended. Where there is none, nothing is captured. Recurrent layers are refused: their activations are in a
    loop, out of which no gradient can be passed.
    """

    def __init__(self, layer: keras.layers.Layer, tag: str | None = None, **kwargs: Any) -> None:
        """Creates the wrapper, around a copy of a Keras layer with activations.

        Gradients are found under names that begin with `tag`, by default the layer's name with "_cag" appended, which is the
        wrapper's name too.

        Raises:
          ValueError: `layer` is none, or has no activation.
        """
        if not self.layer_is_supported(layer):
            raise ValueError(
                f"`layer` is `{layer.name}`, which has no activation of its own; `CaptureUpstreamGradients` captures"
                " the gradient of its result"
            )
        self.tag = layer.name + "_cag" if tag is None else tag
        plain = keras.saving.serialize_keras_object(layer)
        config = layer.get_config()
        for key in _activations(layer):
            config[key] = self._capturing(getattr(layer, key), f"{self.tag}_{key}")
        copy = type(layer).from_config(config)
        if layer.built:
            built = layer.get_build_config()
            assert built is not None
            copy.build(built["input_shape"])
            copy.set_weights(layer.get_weights())
        super().__init__(copy, **{"name": self.tag, **kwargs})
        self._plain = lambda: plain  # Keras would wrap a dict.
        self.supports_masking = True

    @staticmethod
    def layer_is_supported(layer: keras.layers.Layer) -> bool:
        """Whether a layer has activations whose gradients can be captured.

        Raises:
          ValueError: `layer` is no Keras layer.
        """
        _check_layer(layer)
        return bool(_activations(layer))

    def call(self, inputs: Nested, *args: Any, **kwargs: Any) -> Nested:
        """Computes the layer."""
        return self.layer(inputs, *args, **kwargs)

    def get_config(self) -> Config:
        return {**keras.layers.Layer.get_config(self), "layer": self._plain(), "tag": self.tag}

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
    """The names of a layer's arguments that are activations."""
    if isinstance(layer, keras.layers.RNN):
        return []
    return [key for key in layer.get_config() if "activation" in key and callable(getattr(layer, key, None))]
