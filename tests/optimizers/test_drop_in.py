"""The optimizers under the names of the IPU's own packages."""

from __future__ import annotations

from tensorflow_ipu import compat


def test_code_for_ipus_finds_the_optimizers_where_it_looks_for_them():
    compat.install()
    try:
        import keras.ipu.optimizers
        from ipu_tensorflow_addons.keras.optimizers import AdamIpuOptimizer, LAMBIpuOptimizer, SGDIpuOptimizer
        from keras.ipu.optimizers.als_optimizer import ALSDefaults, ALSOptimizer
        from tensorflow.python import ipu
        from tensorflow.python.ipu import gradient_accumulation as ga
        from tensorflow.python.ipu.optimizers import CrossReplicaOptimizer, gradient_accumulation_optimizer

        assert ipu.optimizers.CrossReplicaOptimizer is CrossReplicaOptimizer
        assert ipu.cross_replica_optimizer.CrossReplicaOptimizer is CrossReplicaOptimizer
        assert ipu.optimizers.GradientAccumulationOptimizerV2 is (
            gradient_accumulation_optimizer.GradientAccumulationOptimizerV2
        )
        assert ga.GradientAccumulationReductionMethod.parse("mean").name == "MEAN"
        assert issubclass(keras.ipu.optimizers.ALSOptimizerAdam, ALSOptimizer)
        assert issubclass(keras.ipu.optimizers.GradientAccumulationOptimizer, keras.optimizers.Optimizer)
        assert ALSDefaults.update_frequency == 8
        names = [optimizer().name for optimizer in (AdamIpuOptimizer, LAMBIpuOptimizer, SGDIpuOptimizer)]
        assert names == ["Adam", "LAMB", "SGD"]
    finally:
        compat.uninstall()
