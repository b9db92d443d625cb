"""Layers of connectionist temporal classification."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._base.tensors import known_size
from tensorflow_ipu.keras._keras import keras
from tensorflow_ipu.keras.layers._config import arguments_of
from tensorflow_ipu.ops import nn_ops

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Config

__all__ = ["CTCInferenceLayer", "CTCLoss", "CTCPredictionsLayer"]


@keras.saving.register_keras_serializable(package="tensorflow_ipu")
class CTCLoss(keras.layers.Layer):
    """Computes the loss of connectionist temporal classification.

    Use the layer as the output of a model, and compile the model with a loss that returns this output.
    """

    def __init__(self, blank_index: int = 0, from_logits: bool = False, **kwargs: Any) -> None:
        """Creates the layer.

        `blank_index` is the blank class; negative values count from the last class. With `from_logits`, `data` are
        logits; otherwise they are logarithms of probabilities.
        """
        super().__init__(**kwargs)
        self.blank_index = blank_index
        self.from_logits = from_logits

    def call(
        self, labels: tf.Tensor, data: tf.Tensor, label_length: tf.Tensor, data_length: tf.Tensor, **kwargs: Any
    ) -> tf.Tensor:
        """Returns the loss of each sequence, [batch].

        The arguments are as for `tensorflow_ipu.ops.nn_ops.ctc_loss_v2`, with `data` for its `logits`.

        Raises:
          ValueError: There is no class `blank_index`.
        """
        del kwargs
        loss = nn_ops.ctc_loss_v2 if self.from_logits else nn_ops.ctc_loss_with_log_probs
        return loss(labels, data, label_length, data_length, self.blank_index)

    def get_config(self) -> Config:
        return {**super().get_config(), "blank_index": self.blank_index, "from_logits": self.from_logits}


@keras.saving.register_keras_serializable(package="tensorflow_ipu")
class CTCInferenceLayer(keras.layers.Layer):
    """Finds the most probable sequences of labels by a beam search."""

    def __init__(
        self, blank_index: int = 0, beam_width: int = 100, top_paths: int = 1, from_logits: bool = False, **kwargs: Any
    ) -> None:
        """Creates the layer; see `CTCLoss` for `blank_index` and `from_logits`.

        The search keeps `beam_width` sequences at each time step, and returns `top_paths` of them.

        Raises:
          ValueError: `top_paths` is not from 1 to `beam_width`.
        """
        super().__init__(**kwargs)
        if not 1 <= top_paths <= beam_width:
            raise ValueError(f"`top_paths={top_paths}` must be from 1 to `beam_width`, which is {beam_width}")
        self.blank_index = blank_index
        self.beam_width = beam_width
        self.top_paths = top_paths
        self.from_logits = from_logits

    def call(self, data: tf.Tensor, data_length: tf.Tensor, **kwargs: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the most probable sequences of labels.

        Arguments and results are as for `tensorflow_ipu.ops.nn_ops.ctc_beam_search_decoder`.

        Raises:
          ValueError: There is no class `blank_index`.
        """
        del kwargs
        search = nn_ops.ctc_beam_search_decoder if self.from_logits else nn_ops.ctc_beam_search_decoder_with_log_probs
        return search(data, data_length, self.beam_width, self.top_paths, self.blank_index)

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, CTCInferenceLayer)}


@keras.saving.register_keras_serializable(package="tensorflow_ipu")
class CTCPredictionsLayer(CTCInferenceLayer):
    """Finds the most probable sequence of labels by a beam search."""

    def call(self, data: tf.Tensor, data_length: tf.Tensor, **kwargs: Any) -> tf.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]  # The base class returns three tensors.
        """Returns the labels of the best path, int32 [batch, time], padded with `blank_index`; see `CTCInferenceLayer.call`."""
        _, lengths, labels = super().call(data, data_length, **kwargs)
        best = labels[:, 0]
        blank = self.blank_index % known_size(data, -1)
        return tf.where(tf.range(best.shape[1]) < lengths[:, :1], best, blank)
