"""Keras optimizers with an IPU program's ways with gradients: wrappers of any, and some of their own."""

from tensorflow_ipu.keras.optimizers._adam import AdamIpuOptimizer, LAMBIpuOptimizer
from tensorflow_ipu.keras.optimizers._als import ALSDefaults, ALSOptimizer
from tensorflow_ipu.keras.optimizers._als_optimizers import (
    ALSGradientAccumulationOptimizer,
    ALSOptimizerAdam,
    ALSOptimizerRMSProp,
    ALSOptimizerSGD,
)
from tensorflow_ipu.keras.optimizers._gradient_accumulation import GradientAccumulationOptimizer
from tensorflow_ipu.keras.optimizers._ipu_base import IpuOptimizerBase
from tensorflow_ipu.keras.optimizers._loss_scale import LossScaleOptimizer
from tensorflow_ipu.keras.optimizers._sgd import RMSpropIpuOptimizer, SGDIpuOptimizer
from tensorflow_ipu.keras.optimizers._wrapper import CrossReplicaOptimizer, MapGradientOptimizer

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
