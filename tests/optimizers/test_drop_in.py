"""The optimizers under the names of the IPU's own packages."""

from __future__ import annotations


def test_code_for_ipus_finds_the_optimizers_where_it_looks_for_them(run_script):
    done = run_script(
        """
        import sys

        import tensorflow_ipu.compat

        assert "tensorflow_ipu.keras.optimizers" not in sys.modules  # It takes time to import.
        tensorflow_ipu.compat.install()
        from tensorflow.python import ipu
        from tensorflow.python.ipu import gradient_accumulation as ga
        from tensorflow.python.ipu.optimizers import CrossReplicaOptimizer, gradient_accumulation_optimizer

        import keras.ipu.optimizers
        from keras.ipu.optimizers.als_optimizer import ALSDefaults, ALSOptimizer
        from ipu_tensorflow_addons.keras.optimizers import AdamIpuOptimizer, LAMBIpuOptimizer, SGDIpuOptimizer

        assert ipu.optimizers.CrossReplicaOptimizer is CrossReplicaOptimizer
        assert ipu.cross_replica_optimizer.CrossReplicaOptimizer is CrossReplicaOptimizer
        assert ipu.optimizers.GradientAccumulationOptimizerV2 is (
            gradient_accumulation_optimizer.GradientAccumulationOptimizerV2
        )
        assert ga.GradientAccumulationReductionMethod.parse("mean").name == "MEAN"
        assert issubclass(keras.ipu.optimizers.ALSOptimizerAdam, ALSOptimizer)
        assert issubclass(keras.ipu.optimizers.GradientAccumulationOptimizer, keras.optimizers.Optimizer)
        assert ALSDefaults.update_frequency == 8
        print(AdamIpuOptimizer().name, LAMBIpuOptimizer().name, SGDIpuOptimizer().name)
        """
    )
    assert done.stdout.split() == ["Adam", "LAMB", "SGD"]
