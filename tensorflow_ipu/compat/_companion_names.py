"""The names of packages beside IPU TensorFlow: of several instances, and of add-ons to Keras."""

from __future__ import annotations

from tensorflow_ipu.compat._table import Module, Target, absent, here

_POPDIST = "tensorflow_ipu.compat._popdist"
_HOROVOD = "tensorflow_ipu.compat._horovod"

_IN_STRATEGY = "`PopDistStrategy` and the optimizers of `ipu.optimizers` reduce gradients over all instances"

# Of the SDK's older `ipu.horovod` too.
HOROVOD: dict[str, Target] = {
    **here(
        _HOROVOD,
        "Average Sum allgather allreduce broadcast broadcast_global_variables broadcast_variables init",
        "is_homogeneous is_initialized local_rank local_size mpi_enabled rank shutdown size",
    ),
    **absent("Adasum", reason="there are sums and means alone"),
    **absent("DistributedGradientTape DistributedOptimizer", reason=_IN_STRATEGY),
}

PACKAGES = ("horovod", "popdist")
ADDONS = "ipu_tensorflow_addons"
_KERAS_LAYERS = "tensorflow_ipu.keras.layers"
_KERAS_OPTIMIZERS = "tensorflow_ipu.keras.optimizers"

_LAYERS: dict[str, dict[str, Target]] = {
    "assume_equal_across_replicas": here(_KERAS_LAYERS, "AssumeEqualAcrossReplicas"),
    "ctc": here(_KERAS_LAYERS, "CTCInferenceLayer CTCLoss CTCPredictionsLayer"),
    "dense": here(_KERAS_LAYERS, "Dense SerialDense"),
    "dropout": here(_KERAS_LAYERS, "Dropout"),
    "effective_transformer": here(_KERAS_LAYERS, "EffectiveTransformer"),
    "embedding_lookup": here(_KERAS_LAYERS, "Embedding"),
    "f8_convert": here(_KERAS_LAYERS, "ConvertFromF8 ConvertToF8"),
    "normalization": {
        **here(_KERAS_LAYERS, "GroupNormalization InstanceNormalization LayerNormalization"),
        "GroupNorm": f"{_KERAS_LAYERS}:GroupNormalization",
        "InstanceNorm": f"{_KERAS_LAYERS}:InstanceNormalization",
        "LayerNorm": f"{_KERAS_LAYERS}:LayerNormalization",
    },
    "recomputation": here(_KERAS_LAYERS, "RecomputationCheckpoint"),
    "rnn": {
        **here(_KERAS_LAYERS, "PopnnGRU PopnnLSTM"),
        "GRU": f"{_KERAS_LAYERS}:PopnnGRU",
        "LSTM": f"{_KERAS_LAYERS}:PopnnLSTM",
    },
}

_OPTIMIZERS: dict[str, dict[str, Target]] = {
    "adam_optimizer": here(_KERAS_OPTIMIZERS, "AdamIpuOptimizer"),
    "ipu_optimizer_base": here(_KERAS_OPTIMIZERS, "IpuOptimizerBase"),
    "lamb_optimizer": here(_KERAS_OPTIMIZERS, "LAMBIpuOptimizer"),
    "sgd_optimizer": here(_KERAS_OPTIMIZERS, "SGDIpuOptimizer"),
}

_RNN_OPS: dict[str, Target] = here(
    "tensorflow_ipu.ops.rnn_ops", "PopnnAUGRU PopnnDynamicGRU PopnnDynamicLSTM PopnnGRU PopnnLSTM"
)


def _all_of(modules: dict[str, dict[str, Target]]) -> dict[str, Target]:
    return {name: target for names in modules.values() for name, target in names.items()}


_ADDON_MODULES: dict[str, Module] = {
    ADDONS: Module(),
    f"{ADDONS}.keras": Module(),
    f"{ADDONS}.keras.layers": Module(_all_of(_LAYERS)),
    **{f"{ADDONS}.keras.layers.{name}": Module(names) for name, names in _LAYERS.items()},
    f"{ADDONS}.keras.optimizers": Module(_all_of(_OPTIMIZERS)),
    **{f"{ADDONS}.keras.optimizers.{name}": Module(names) for name, names in _OPTIMIZERS.items()},
    # Where releases of 2021 had those of `v1`.
    f"{ADDONS}.layers": Module(_RNN_OPS),
    f"{ADDONS}.layers.rnn_ops": Module(_RNN_OPS),
    f"{ADDONS}.v1": Module(),
    f"{ADDONS}.v1.layers": Module(_RNN_OPS),
    f"{ADDONS}.v1.layers.rnn_ops": Module(_RNN_OPS),
}

# Yields to the package where that is installed.
TENSORFLOW_ADDONS = "tensorflow_addons"
_ADDONS = "tensorflow_ipu.compat._addons"
_NO_ADDONS = "That package no longer installs, and these are the names of it that programs for IPUs use."
_ADDONS_NAMES: dict[str, dict[str, Target]] = {
    "activations": here(_ADDONS, "gelu"),
    "layers": {
        **here(_ADDONS, "GELU InstanceNormalization WeightNormalization"),
        "GroupNormalization": "tensorflow.keras.layers:GroupNormalization",
    },
    "losses": here(_ADDONS, "SigmoidFocalCrossEntropy sigmoid_focal_crossentropy"),
    "metrics": here(_ADDONS, "F1Score MatthewsCorrelationCoefficient"),
    "optimizers": {
        **here(_ADDONS, "AdamW DecoupledWeightDecayExtension SGDW extend_with_decoupled_weight_decay"),
        "LAMB": f"{_KERAS_OPTIMIZERS}:LAMBIpuOptimizer",
    },
}
# Modules in which scripts look for them too.
_ADDONS_FILES = {
    "layers.gelu": "layers",
    "layers.normalizations": "layers",
    "layers.wrappers": "layers",
    "losses.focal_loss": "losses",
    "metrics.f_scores": "metrics",
    "optimizers.lamb": "optimizers",
    "optimizers.weight_decay_optimizers": "optimizers",
}

MODULES: dict[str, Module] = {
    TENSORFLOW_ADDONS: Module(note=_NO_ADDONS),
    **{f"{TENSORFLOW_ADDONS}.{name}": Module(names, _NO_ADDONS) for name, names in _ADDONS_NAMES.items()},
    **{f"{TENSORFLOW_ADDONS}.{name}": Module(_ADDONS_NAMES[of], _NO_ADDONS) for name, of in _ADDONS_FILES.items()},
    "popdist": Module(
        {
            **here(
                _POPDIST,
                "checkNumIpusPerReplica execute_on_instances finalizeBackend getDeviceId getInstanceIndex",
                "getLocalInstanceIndex getNumInstances getNumIpusPerReplica getNumLocalReplicas",
                "getNumTotalReplicas getReplicaIndexOffset init isBackendInitialized isPopdistEnvSet",
                "synchronize",
            ),
            "initializeBackend": f"{_POPDIST}:init",
        }
    ),
    "popdist.tensorflow": Module(here(_POPDIST, "set_ipu_config")),
    "horovod": Module(),
    "horovod.tensorflow": Module(HOROVOD),
    **_ADDON_MODULES,
}
