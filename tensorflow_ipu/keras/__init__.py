"""Keras models made in an `IPUStrategy` scope: loops that run on the device, options, pipeline stages and layers."""

import importlib
from typing import TYPE_CHECKING, Any

from tensorflow_ipu.keras import _version
from tensorflow_ipu.keras.model.ipu_methods import KerasExtensionBase
from tensorflow_ipu.keras.model.scope import ignore_ipus_for_jit_compile as _ignore_ipus_for_jit_compile
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
_ignore_ipus_for_jit_compile()


if not TYPE_CHECKING:  # Type checkers that see a `__getattr__` accept misspelled names.

    def __getattr__(name: str) -> Any:
        # These modules subclass Keras classes. They are imported on first use, so that Keras is too.
        if name in ("layers", "optimizers"):
            return importlib.import_module(f"{__name__}.{name}")
        if name in ("FunctionalExtension", "ModelExtension", "SequentialExtension"):
            return getattr(importlib.import_module(f"{__name__}.model.ipu_model"), name)
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
