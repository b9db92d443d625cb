"""Wrappers of `tf.compat.v1.train` optimizers that accumulate gradients, or reduce them over replicas."""

from tensorflow_ipu.optimizers._accumulator import AccumulationOptions, GradientAccumulationReductionMethod
from tensorflow_ipu.optimizers._gradient_accumulation import (
    CrossReplicaGradientAccumulationOptimizer,
    CrossReplicaGradientAccumulationOptimizerV2,
    GradientAccumulationOptimizer,
    GradientAccumulationOptimizerV2,
)
from tensorflow_ipu.optimizers._ipu_optimizer import (
    CrossReplicaOptimizer,
    IpuOptimizer,
    MapGradientOptimizer,
    ShardedOptimizer,
    apply_cross_replica_op,
    apply_cross_replica_op_single,
)
from tensorflow_ipu.optimizers._memory import UpdateMemory, update_memory

__all__ = [
    "AccumulationOptions",
    "CrossReplicaGradientAccumulationOptimizer",
    "CrossReplicaGradientAccumulationOptimizerV2",
    "CrossReplicaOptimizer",
    "GradientAccumulationOptimizer",
    "GradientAccumulationOptimizerV2",
    "GradientAccumulationReductionMethod",
    "IpuOptimizer",
    "MapGradientOptimizer",
    "ShardedOptimizer",
    "UpdateMemory",
    "apply_cross_replica_op",
    "apply_cross_replica_op_single",
    "update_memory",
]
