"""Keras's IPU modules, and modules of the Keras before version 3 whose names Keras 3 has elsewhere."""

from __future__ import annotations

from tensorflow_ipu.compat import _companion_names
from tensorflow_ipu.compat._table import Module, Target, absent, here

_NOTE = "Keras 3 has its public names in `keras`, `keras.layers`, `keras.optimizers` and so on."

_OWN = "tensorflow_ipu.keras.optimizers"

_IPU_OPTIMIZERS: dict[str, dict[str, Target]] = {
    "adam": here(_OWN, "ALSOptimizerAdam"),
    "als_optimizer": here(_OWN, "ALSDefaults ALSGradientAccumulationOptimizer ALSOptimizer"),
    "gradient_accumulation_optimizer": here(_OWN, "GradientAccumulationOptimizer"),
    "gradient_descent": here(_OWN, "ALSOptimizerSGD"),
    "rmsprop": here(_OWN, "ALSOptimizerRMSProp"),
}

_LAYERS: dict[str, Target] = here("tensorflow_ipu.keras.layers", "CaptureActivationGradients CaptureUpstreamGradients")

_STAGES: dict[str, Target] = here(
    "tensorflow_ipu.keras",
    "FunctionalLayerPipelineStageAssignment FunctionalNestedModelPipelineStageAssignment",
    "ModelLayerPipelineStageAssignment NestedModelPipelineStageAssignment PipelineStage",
    "SequentialLayerPipelineStageAssignment SequentialNestedModelPipelineStageAssignment",
)

_METHOD: dict[str, Target] = here("tensorflow_ipu.keras", "ReplicatedMetricReductionMethod")

# Scripts of earlier releases find the stages in the modules of the kinds of models.
_EXTENSIONS: dict[str, dict[str, Target]] = {
    "extensions_base": {**here("tensorflow_ipu.keras", "KerasExtensionBase"), **_METHOD},
    "functional_extensions": {**here("tensorflow_ipu.keras", "FunctionalExtension"), **_STAGES},
    "model_extensions": {**here("tensorflow_ipu.keras", "ModelExtension"), **_STAGES},
    "pipeline_stage_assignment": _STAGES,
    "sequential_extensions": {**here("tensorflow_ipu.keras", "SequentialExtension"), **_STAGES},
}

_IPU: dict[str, dict[str, Target]] = {
    "": {**_STAGES, **_METHOD},
    ".extensions": {name: target for names in _EXTENSIONS.values() for name, target in names.items()},
    **{f".extensions.{module}": names for module, names in _EXTENSIONS.items()},
    ".layers": _LAYERS,
    ".layers.capture_upstream_gradients": _LAYERS,
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
    "keras.engine.functional": Module(here("tensorflow_ipu.keras._keras3", "Functional"), _NOTE),
    "keras.engine.input_layer": Module(here("keras.layers", "Input InputLayer"), _NOTE),
    "keras.engine.input_spec": Module(here("keras.layers", "InputSpec"), _NOTE),
    "keras.engine.keras_tensor": Module(here("keras", "KerasTensor"), _NOTE),
    "keras.engine.sequential": Module(here("keras", "Sequential"), _NOTE),
    "keras.engine.training": Module(here("keras", "Model"), _NOTE),
    "keras.mixed_precision.policy": Module(
        {
            **here("keras.mixed_precision", "Policy global_policy set_global_policy"),
            "set_policy": "keras.mixed_precision:set_global_policy",
        },
        _NOTE,
    ),
    "keras.optimizer_v2": Module(note=_NOTE),
    **{f"keras.optimizer_v2.{module}": Module(here("keras.optimizers", name)) for module, name in _OPTIMIZERS.items()},
    "keras.optimizer_v2.learning_rate_schedule": Module(
        here(
            "keras.optimizers.schedules",
            "CosineDecay CosineDecayRestarts ExponentialDecay InverseTimeDecay LearningRateSchedule",
            "PiecewiseConstantDecay PolynomialDecay deserialize serialize",
        ),
        _NOTE,
    ),
    "keras.optimizer_v2.optimizer_v2": Module({"OptimizerV2": "keras.optimizers:Optimizer"}, _NOTE),
    "keras.utils.np_utils": Module(here("keras.utils", "normalize to_categorical"), _NOTE),
}

# Where the releases up to early 2021 had Keras's IPU names, and with them the layers that are add-ons since.
FIRST = "tensorflow.python.ipu.keras"

_FIRST: dict[str, Module] = {
    FIRST: Module(
        {
            **_STAGES,
            **absent(
                "Model PipelineModel PipelineSequential Sequential",
                reason="use `tf.keras.Model` or `tf.keras.Sequential` in the strategy's scope, with its methods"
                " `set_gradient_accumulation_options` and `set_pipelining_options`, as since 2021",
            ),
        }
    ),
    f"{FIRST}.optimizers": Module(
        here(_OWN, "CrossReplicaOptimizer GradientAccumulationOptimizer MapGradientOptimizer")
    ),
    f"{FIRST}.pipeline": Module(_STAGES),
}

MODULES: dict[str, Module] = {
    **{f"keras.ipu{module}": Module(names) for module, names in _IPU.items()},
    **_BEFORE_3,
    **_FIRST,
}

# Where `tf.keras` really is. Its classes are those of `keras`, and its modules are others.
TF_KERAS = "keras._tf_keras.keras"
# By what else it is imported.
SPELLINGS = ("tensorflow.keras", "tensorflow.compat.v1.keras", "tensorflow.compat.v2.keras")

# The old modules that are at no other old module: attributes of modules of Keras.
ROOTS: tuple[str, ...] = tuple(name for name in MODULES if name.rpartition(".")[0] not in MODULES and name != FIRST)

_ADDED = f"{_companion_names.ADDONS}.keras.layers"

ALIASES: dict[str, str] = {
    **{
        f"{keras}{module.removeprefix('keras')}": module
        for keras in (TF_KERAS, *SPELLINGS)
        for module in MODULES
        if module not in _FIRST
    },
    **{f"{FIRST}{module}": f"keras.ipu{module}" for module in _IPU if module.startswith(".extensions")},
    **{
        f"{FIRST}{module.removeprefix(_companion_names.ADDONS + '.keras')}": module
        for module in _companion_names.MODULES
        if module.startswith(_ADDED)
    },
}

_INSIDE = "it served `fit`, `evaluate` and `predict` themselves, which tensorflow_ipu has made anew"

# Modules whose names Keras 3 has nowhere.
GONE: dict[str, str] = {
    **{
        f"keras.ipu.extensions.{module}": _INSIDE
        for module in ("data_adapter", "extensions_util", "polling_thread", "register_extensions")
    },
    "keras.keras_parameterized": "it served Keras's own tests",
    "keras.losses.losses_utils": "Keras 3 takes a loss's `reduction` as a string",
    "keras.testing_utils": "it served Keras's own tests",
}
