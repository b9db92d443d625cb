"""Wrappers that give a `tf.compat.v1.train` optimizer an IPU program's ways with gradients."""

from tensorflow_ipu.optimizers._ipu_optimizer import IpuOptimizer
from tensorflow_ipu.optimizers._map_gradient import MapGradientOptimizer
from tensorflow_ipu.optimizers._reduction import GradientAccumulationReductionMethod

__all__ = ["GradientAccumulationReductionMethod", "IpuOptimizer", "MapGradientOptimizer"]
