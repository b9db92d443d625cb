"""Keras optimizers for IPU programs: wrappers of any Keras optimizer, and optimizers with slots of other types."""

from tensorflow_ipu.keras.optimizers._als import (
    ALSDefaults,
    ALSOptimizer,
    ALSOptimizerAdam,
    ALSOptimizerRMSProp,
    ALSOptimizerSGD,
)
from tensorflow_ipu.keras.optimizers._gradient_accumulation import (
    ALSGradientAccumulationOptimizer,
    GradientAccumulationOptimizer,
)
from tensorflow_ipu.keras.optimizers._ipu_base import IpuOptimizerBase
from tensorflow_ipu.keras.optimizers._ipu_optimizers import (
    AdamIpuOptimizer,
    LAMBIpuOptimizer,
    RMSpropIpuOptimizer,
    SGDIpuOptimizer,
)
from tensorflow_ipu.keras.optimizers._wrapper import CrossReplicaOptimizer, LossScaleOptimizer, MapGradientOptimizer

__all__ = [
    "ALSDefaults",
    "ALSGradientAccumulationOptimizer",
    "ALSOptimizer",
    "ALSOptimizerAdam",
    "ALSOptimizerRMSProp",
    "ALSOptimizerSGD",
    "AdamIpuOptimizer",
    "CrossReplicaOptimizer",
    "GradientAccumulationOptimizer",
    "IpuOptimizerBase",
    "LAMBIpuOptimizer",
    "LossScaleOptimizer",
    "MapGradientOptimizer",
    "RMSpropIpuOptimizer",
    "SGDIpuOptimizer",
]
