"""Keras layers of the IPU, for models of the Keras of this process, inside and outside of a strategy's scope."""

from tensorflow_ipu.keras.layers.assume_equal_across_replicas import AssumeEqualAcrossReplicas
from tensorflow_ipu.keras.layers.ctc import CTCInferenceLayer, CTCLoss, CTCPredictionsLayer
from tensorflow_ipu.keras.layers.dense import Dense, SerialDense
from tensorflow_ipu.keras.layers.dropout import Dropout
from tensorflow_ipu.keras.layers.effective_transformer import EffectiveTransformer
from tensorflow_ipu.keras.layers.embedding_lookup import Embedding
from tensorflow_ipu.keras.layers.f8_convert import ConvertFromF8, ConvertToF8
from tensorflow_ipu.keras.layers.gradient_capture import CaptureActivationGradients, CaptureUpstreamGradients
from tensorflow_ipu.keras.layers.normalization import GroupNormalization, InstanceNormalization, LayerNormalization
from tensorflow_ipu.keras.layers.recomputation import RecomputationCheckpoint, Recompute
from tensorflow_ipu.keras.layers.rnn import PopnnGRU, PopnnLSTM

__all__ = [
    "AssumeEqualAcrossReplicas",
    "CTCInferenceLayer",
    "CTCLoss",
    "CTCPredictionsLayer",
    "CaptureActivationGradients",
    "CaptureUpstreamGradients",
    "ConvertFromF8",
    "ConvertToF8",
    "Dense",
    "Dropout",
    "EffectiveTransformer",
    "Embedding",
    "GroupNormalization",
    "InstanceNormalization",
    "LayerNormalization",
    "PopnnGRU",
    "PopnnLSTM",
    "RecomputationCheckpoint",
    "Recompute",
    "SerialDense",
]
