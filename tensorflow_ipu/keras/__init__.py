"""What Keras models have under an `IPUStrategy`: loops on the device, and options for them."""

import importlib
from typing import TYPE_CHECKING, Any

from tensorflow_ipu.keras import _version
from tensorflow_ipu.keras.model.ipu_methods import KerasExtensionBase
from tensorflow_ipu.keras.model.scope import look_past_ipus as _look_past_ipus
from tensorflow_ipu.keras.options.options import ReplicatedMetricReductionMethod
from tensorflow_ipu.keras.pipeline.stages import (
    FunctionalLayerPipelineStageAssignment,
    FunctionalNestedModelPipelineStageAssignment,
    ModelLayerPipelineStageAssignment,
    NestedModelPipelineStageAssignment,
    PipelineStage,
    SequentialLayerPipelineStageAssignment,
    SequentialNestedModelPipelineStageAssignment,
)

if TYPE_CHECKING:
    from tensorflow_ipu.keras import layers, optimizers
    from tensorflow_ipu.keras.model.ipu_model import FunctionalExtension, ModelExtension, SequentialExtension

__all__ = [
    "FunctionalExtension",
    "FunctionalLayerPipelineStageAssignment",
    "FunctionalNestedModelPipelineStageAssignment",
    "KerasExtensionBase",
    "ModelExtension",
    "ModelLayerPipelineStageAssignment",
    "NestedModelPipelineStageAssignment",
    "PipelineStage",
    "ReplicatedMetricReductionMethod",
    "SequentialExtension",
    "SequentialLayerPipelineStageAssignment",
    "SequentialNestedModelPipelineStageAssignment",
    "layers",
    "optimizers",
]

_version.check(_version.installed())
_look_past_ipus()


if not TYPE_CHECKING:  # A misspelled name is an error for type checkers.

    def __getattr__(name: str) -> Any:
        # They define classes of Keras's, and so import it: not before someone asks for them.
        if name in ("layers", "optimizers"):
            return importlib.import_module(f"{__name__}.{name}")
        if name in ("FunctionalExtension", "ModelExtension", "SequentialExtension"):
            return getattr(importlib.import_module(f"{__name__}.model.ipu_model"), name)
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
