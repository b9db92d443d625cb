"""Packages that come beside IPU TensorFlow, and serve programs of several instances."""

from __future__ import annotations

from tensorflow_ipu.compat._table import Module, Target, absent, here

_POPDIST = "tensorflow_ipu.compat._popdist"
_HOROVOD = "tensorflow_ipu.compat._horovod"

_IN_STRATEGY = "`PopDistStrategy` and the optimizers of `ipu.optimizers` reduce gradients over all instances"

# Of the SDK's older `ipu.horovod` too.
HOROVOD: dict[str, Target] = {
    **here(
        _HOROVOD,
        "Average",
        "Sum",
        "allgather",
        "allreduce",
        "broadcast",
        "broadcast_global_variables",
        "broadcast_variables",
        "init",
        "is_homogeneous",
        "is_initialized",
        "local_rank",
        "local_size",
        "mpi_enabled",
        "rank",
        "shutdown",
        "size",
    ),
    **absent("Adasum", reason="there are sums and means alone"),
    **absent("DistributedGradientTape", "DistributedOptimizer", reason=_IN_STRATEGY),
}

MODULES: dict[str, Module] = {
    "popdist": Module(
        {
            **here(
                _POPDIST,
                "checkNumIpusPerReplica",
                "execute_on_instances",
                "finalizeBackend",
                "getDeviceId",
                "getInstanceIndex",
                "getLocalInstanceIndex",
                "getNumInstances",
                "getNumIpusPerReplica",
                "getNumLocalReplicas",
                "getNumTotalReplicas",
                "getReplicaIndexOffset",
                "init",
                "isBackendInitialized",
                "isPopdistEnvSet",
                "synchronize",
            ),
            "initializeBackend": f"{_POPDIST}:init",
        }
    ),
    "popdist.tensorflow": Module(here(_POPDIST, "set_ipu_config")),
    "horovod": Module(),
    "horovod.tensorflow": Module(HOROVOD),
}

PACKAGES = ("horovod", "popdist")
