"""What TensorFlow's Python package had when scripts for IPUs were written, and has elsewhere now."""

from __future__ import annotations

from tensorflow_ipu.compat._table import Module, here

_TF = "tensorflow.python"
_DATASETS = f"{_TF}.keras.datasets"
_TRACKING = f"{_TF}.training.tracking"

_DATASET_NAMES: dict[str, str] = {
    **dict.fromkeys(("boston_housing", "cifar10", "cifar100", "fashion_mnist", "mnist"), "load_data"),
    "imdb": "get_word_index load_data",
    "reuters": "get_label_names get_word_index load_data",
}

# Modules below `tensorflow.python`: where their names are now, and which.
_MOVED: dict[str, tuple[str, ...]] = {
    "data.experimental.ops.distribute_options": (
        "data.ops.options",
        "AutoShardPolicy DistributeOptions ExternalStatePolicy",
    ),
    "data.experimental.ops.optimization_options": ("data.ops.options", "OptimizationOptions"),
    "data.experimental.ops.threading_options": ("data.ops.options", "ThreadingOptions"),
    "distribute.distribution_strategy_context": (
        "distribute.distribute_lib",
        "enter_or_assert_strategy experimental_set_strategy get_cross_replica_context get_replica_context get_strategy",
        "get_strategy_and_replica_context has_strategy in_cross_replica_context in_variable_sync_on_read_context",
        "variable_sync_on_read_context",
    ),
    "training.saving.functional_saver": ("checkpoint.functional_saver", "MultiDeviceSaver"),
    "training.training_ops": (
        "ops.gen_training_ops",
        "resource_apply_adagrad resource_apply_adam resource_apply_ftrl resource_apply_gradient_descent",
        "resource_apply_keras_momentum resource_apply_momentum resource_apply_rms_prop",
    ),
    "training.tracking.asset": ("trackable.asset", "Asset"),
    "training.tracking.base": (
        "trackable.base",
        "CheckpointInitialValue CheckpointInitialValueCallable NoRestoreSaveable Trackable TrackableReference",
        "no_automatic_dependency_tracking no_automatic_dependency_tracking_scope no_manual_dependency_tracking_scope",
    ),
    "training.tracking.data_structures": (
        "trackable.data_structures",
        "List ListWrapper Mapping NoDependency TrackableDataStructure set_list_item set_tuple_item",
        "sticky_attribute_assignment wrap_or_unwrap",
    ),
    "training.tracking.graph_view": ("checkpoint.graph_view", "ObjectGraphView"),
    "training.tracking.layer_utils": (
        "trackable.layer_utils",
        "AttributeSentinel MutationSentinel filter_empty_layer_containers has_weights is_layer",
    ),
    "training.tracking.python_state": ("trackable.python_state", "PythonState"),
    "training.tracking.util": (
        "checkpoint.checkpoint",
        "Checkpoint CheckpointV1 TrackableSaver add_variable capture_dependencies frozen_saver gather_initializers",
        "list_objects",
    ),
}

CONTRIB = "tensorflow.contrib"
_NO_CONTRIB = "TensorFlow 2 has no `tf.contrib`: look for the function in `tf`, `tf.compat.v1` or a package of its own."

# Parts of `tf.contrib`, and what they became.
_PARTS: dict[str, str] = {
    "all_reduce mpi_collectives nccl": "use `tf.distribute`, or the collectives of `tensorflow.python.ipu`",
    "autograph": "it is `tf.autograph`",
    "batching": "use `tf.nondifferentiable_batch_function`",
    "bayesflow distributions integrate": "it is in the package `tensorflow_probability`",
    "bigtable cloud ffmpeg hadoop kafka kinesis libsvm": "it is in the package `tensorflow_io`",
    "boosted_trees decision_trees tensor_forest": "it became the package `tensorflow_decision_forests`",
    "checkpoint": "use `tf.train.Checkpoint`",
    "cluster_resolver": "it is `tf.distribute.cluster_resolver`",
    "compiler xla": "use `ipu_compiler.compile` of `tensorflow.python.ipu`, or `tf.function(jit_compile=True)`",
    "crf seq2seq": "it moved to `tensorflow_addons`, which no longer installs; write it with `tf.while_loop` or `tf.scan`",
    "cudnn_rnn": "use `tf.keras.layers.LSTM` and `GRU`, or `PopnnLSTM` and `PopnnGRU` of `ipu_tensorflow_addons`",
    "data": "use `tf.data` and `tf.data.experimental`",
    "distribute parameter_server": "use `IPUStrategy` or `tf.distribute`",
    "eager": "use `tf.GradientTape`, `tf.Variable` and `tf.function`",
    "estimator factorization kernel_methods learn linear_optimizer timeseries": (
        "it needs estimators, which TensorFlow removed in 2.16; train a Keras model by `fit`, or write a training loop"
    ),
    "feature_column": "it is `tf.feature_column`",
    "framework": (
        "use `tf.compat.v1.train.get_or_create_global_step`, `tf.compat.v1.get_collection` and `tf.nest`; `arg_scope` is in"
        " the package `tf_slim`"
    ),
    "gan": "it became the package `tensorflow_gan`",
    "graph_editor": "edit the `tf.compat.v1.GraphDef` of a graph, and import it again",
    "grid_rnn legacy_seq2seq rnn": (
        "use `tf.compat.v1.nn.rnn_cell`, `tf.compat.v1.nn.dynamic_rnn` or `tf.keras.layers`, or `PopnnLSTM` and `PopnnGRU` of"
        " `ipu_tensorflow_addons`"
    ),
    "image": "use `tf.image` and `tf.raw_ops.ImageProjectiveTransformV3`",
    "ipu": "the SDK moved it to `tensorflow.python.ipu`",
    "keras": "it is `tf.keras`",
    "layers": (
        "use `tf.compat.v1.layers` or `tf.keras.layers`, `tf.initializers` and `tf.keras.regularizers`; the package"
        " `tf_slim` has the functions themselves, in `tf_slim.layers`"
    ),
    "linalg": "use `tf.linalg`",
    "lite": "it is `tf.lite`",
    "lookup": "use `tf.lookup`",
    "losses": "use `tf.compat.v1.losses` or `tf.keras.losses`",
    "memory_stats": "use `tf.config.experimental.get_memory_info`, or a report of `tensorflow_ipu`",
    "metrics": "use `tf.compat.v1.metrics` or `tf.keras.metrics`",
    "mixed_precision": "use `tf.keras.mixed_precision`",
    "model_pruning quantize quantization": "it became the package `tensorflow_model_optimization`",
    "nearest_neighbor periodic_resample resampler": "write it with `tf.gather` and `tf.image`",
    "nn": "use `tf.nn`",
    "opt optimizer_v2": "use `tf.compat.v1.train` or `tf.keras.optimizers`",
    "predictor saved_model session_bundle": "use `tf.saved_model`",
    "signal": "it is `tf.signal`",
    "slim": "it is the package `tf_slim`",
    "stateless": "use `tf.random.stateless_uniform` and the other functions of `tf.random` with such names",
    "summary tensorboard": "use `tf.summary`",
    "tensorrt": "it is `tf.experimental.tensorrt`",
    "text": "it became the package `tensorflow_text`",
    "tpu": "use `IPUStrategy`; there are no TPUs here",
    "training": "use `tf.train` and `tf.compat.v1.train`; in place of `HParams`, a class of your own",
}

# Modules that are gone, and what they became.
GONE: dict[str, str] = {f"{CONTRIB}.{part}": became for parts, became in _PARTS.items() for part in parts.split()}

_ESTIMATOR = "tensorflow.estimator"
_NO_ESTIMATORS = (
    "TensorFlow removed estimators in 2.16: train a Keras model by `fit`, or write a training loop under `IPUStrategy`."
)

MODULES: dict[str, Module] = {
    CONTRIB: Module(note=_NO_CONTRIB),
    _ESTIMATOR: Module(note=_NO_ESTIMATORS),
    _DATASETS: Module(),
    **{f"{_DATASETS}.{name}": Module(here(f"keras.datasets.{name}", names)) for name, names in _DATASET_NAMES.items()},
    _TRACKING: Module(),
    **{f"{_TF}.{old}": Module(here(f"{_TF}.{new}", *names)) for old, (new, *names) in _MOVED.items()},
    f"{_TRACKING}.tracking": Module(
        {
            **here(f"{_TF}.trackable.asset", "Asset"),
            **here(f"{_TF}.trackable.autotrackable", "AutoTrackable"),
            **here(
                f"{_TF}.trackable.resource",
                "CapturableResource ResourceTracker TrackableResource resource_tracker_scope",
            ),
        }
    ),
}

# Names that modules below `tensorflow.python` have lost: the module, where they are now, and which, some as `old=new`.
_LOST: tuple[tuple[str, str, str], ...] = (
    ("data.ops.dataset_ops", "data.ops.options", "Options"),
    ("distribute.values", "distribute.ps_values", "AggregatingVariable"),
    ("framework.ops", "eager.context", "executing_eagerly"),
    (
        "framework.ops",
        "framework.indexed_slices",
        "IndexedSlices IndexedSlicesValue convert_n_to_tensor_or_indexed_slices convert_to_tensor_or_indexed_slices",
    ),
    ("framework.ops", "framework.tensor", "Tensor"),
    ("framework.ops", "framework.tensor_conversion_registry", "register_tensor_conversion_function"),
    ("framework.tensor_util", "ops.shape_util", "maybe_set_static_shape shape_tensor"),
    ("ops.array_ops", "ops.array_ops_stack", "stack unstack"),
    ("ops.control_flow_ops", "framework.smart_cond", "smart_case smart_cond smart_constant_value"),
    ("ops.control_flow_ops", "ops.cond", "cond cond_for_tf_v2"),
    ("ops.control_flow_ops", "ops.control_flow_assert", "Assert"),
    ("ops.control_flow_ops", "ops.control_flow_case", "case case_v2"),
    ("ops.control_flow_ops", "ops.control_flow_switch_case", "switch_case"),
    ("ops.control_flow_ops", "ops.while_loop", "while_loop while_loop_v2"),
    ("ops.functional_ops", "ops.map_fn", "map_fn"),
    ("ops.gradients_impl", "ops.gradients_util", "_GradientsHelper"),
    ("ops.variable_scope", "ops.resource_variables_toggle", "enable_resource_variables"),
    ("ops.variable_scope", "ops.variable_v1", "default_variable_creator"),
    ("ops.variable_scope", "ops.variables", "default_variable_creator_v2"),
    ("ops.variables", "ops.ref_variable", "RefVariable"),
    ("ops.variables", "ops.variable_v1", "VariableV1 is_variable_initialized"),
    ("util.nest", "util.nest", "is_sequence=is_nested"),
)

_STATS = "StatsAggregator StatsOptions bytes_produced_stats latency_stats"

# Names that modules of TensorFlow have lost: module, name, where it is now.
ATTRIBUTES: tuple[tuple[str, str, str], ...] = (
    ("tensorflow", "python", _TF),
    ("tensorflow.compat.v1", "python", _TF),
    (_TF, "ipu", f"{_TF}.ipu"),
    *(
        (tensorflow, name, f"tensorflow.{name}")
        for tensorflow in ("tensorflow", "tensorflow.compat.v1")
        for name in ("contrib", "estimator")
    ),
    *(
        (f"{tensorflow}.data.experimental", name, f"tensorflow_ipu.compat._dataset_stats:{name}")
        for tensorflow in ("tensorflow", "tensorflow.compat.v1")
        for name in _STATS.split()
    ),
    *(
        (f"{_TF}.{module}", old, f"{_TF}.{place}:{new}")
        for module, place, names in _LOST
        for old, _, new in (name.partition("=") if "=" in name else (name, "", name) for name in names.split())
    ),
    (f"{_TF}.eager.function", "defun", "tensorflow:function"),
)
