"""Keras's IPU modules, and modules of the Keras before version 3 whose names Keras 3 has elsewhere."""

from __future__ import annotations

from tensorflow_ipu.compat._table import Module, Target, here

_NOTE = "Keras 3 has its public names in `keras`, `keras.layers`, `keras.optimizers` and so on."

_OWN = "tensorflow_ipu.keras.optimizers"

_IPU_OPTIMIZERS: dict[str, dict[str, Target]] = {
    "adam": here(_OWN, "ALSOptimizerAdam"),
    "als_optimizer": here(_OWN, "ALSDefaults", "ALSGradientAccumulationOptimizer", "ALSOptimizer"),
    "gradient_accumulation_optimizer": here(_OWN, "GradientAccumulationOptimizer"),
    "gradient_descent": here(_OWN, "ALSOptimizerSGD"),
    "rmsprop": here(_OWN, "ALSOptimizerRMSProp"),
}

_LAYERS: dict[str, Target] = here(
    "tensorflow_ipu.keras.layers", "CaptureActivationGradients", "CaptureUpstreamGradients"
)

_IPU: dict[str, dict[str, Target]] = {
    "": here(
        "tensorflow_ipu.keras",
        "FunctionalLayerPipelineStageAssignment",
        "FunctionalNestedModelPipelineStageAssignment",
        "ModelLayerPipelineStageAssignment",
        "NestedModelPipelineStageAssignment",
        "PipelineStage",
        "ReplicatedMetricReductionMethod",
        "SequentialLayerPipelineStageAssignment",
        "SequentialNestedModelPipelineStageAssignment",
    ),
    ".extensions": here(
        "tensorflow_ipu.keras", "FunctionalExtension", "KerasExtensionBase", "ModelExtension", "SequentialExtension"
    ),
    ".layers": _LAYERS,
    ".optimizers": {name: target for names in _IPU_OPTIMIZERS.values() for name, target in names.items()},
    **{f".optimizers.{module}": names for module, names in _IPU_OPTIMIZERS.items()},
}

_OPTIMIZERS: dict[str, str] = {
    "adadelta": "Adadelta",
    "adagrad": "Adagrad",
    "adam": "Adam",
    "adamax": "Adamax",
    "ftrl": "Ftrl",
    "gradient_descent": "SGD",
    "nadam": "Nadam",
    "rmsprop": "RMSprop",
}

_BEFORE_3: dict[str, Module] = {
    "keras.engine": Module(note=_NOTE),
    "keras.engine.base_layer": Module(here("keras.layers", "Layer"), _NOTE),
    "keras.engine.input_layer": Module(here("keras.layers", "Input", "InputLayer"), _NOTE),
    "keras.engine.sequential": Module(here("keras", "Sequential"), _NOTE),
    "keras.engine.training": Module(here("keras", "Model"), _NOTE),
    "keras.optimizer_v2": Module(note=_NOTE),
    **{f"keras.optimizer_v2.{module}": Module(here("keras.optimizers", name)) for module, name in _OPTIMIZERS.items()},
    "keras.optimizer_v2.learning_rate_schedule": Module(
        here(
            "keras.optimizers.schedules",
            "CosineDecay",
            "CosineDecayRestarts",
            "ExponentialDecay",
            "InverseTimeDecay",
            "LearningRateSchedule",
            "PiecewiseConstantDecay",
            "PolynomialDecay",
            "deserialize",
            "serialize",
        ),
        _NOTE,
    ),
    "keras.optimizer_v2.optimizer_v2": Module({"OptimizerV2": "keras.optimizers:Optimizer"}, _NOTE),
    "keras.utils.np_utils": Module(here("keras.utils", "normalize", "to_categorical"), _NOTE),
}

MODULES: dict[str, Module] = {**{f"keras.ipu{module}": Module(names) for module, names in _IPU.items()}, **_BEFORE_3}

# Keras goes by two names.
ALIASES: dict[str, str] = {f"tensorflow.keras.ipu{module}": f"keras.ipu{module}" for module in _IPU}

# Modules whose names Keras 3 has nowhere.
GONE: dict[str, str] = {
    "keras.keras_parameterized": "it served Keras's own tests",
    "keras.losses.losses_utils": "Keras 3 takes a loss's `reduction` as a string",
    "keras.testing_utils": "it served Keras's own tests",
}
