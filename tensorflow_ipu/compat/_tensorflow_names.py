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
    "distribute.distribution_strategy_context": (
        "distribute.distribute_lib",
        "enter_or_assert_strategy experimental_set_strategy get_cross_replica_context get_replica_context get_strategy",
        "get_strategy_and_replica_context has_strategy in_cross_replica_context in_variable_sync_on_read_context",
        "variable_sync_on_read_context",
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

MODULES: dict[str, Module] = {
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

# Names that modules of TensorFlow have lost: module, name, where it is now.
ATTRIBUTES: tuple[tuple[str, str, str], ...] = (
    ("tensorflow", "python", _TF),
    (_TF, "ipu", f"{_TF}.ipu"),
    (f"{_TF}.framework.ops", "Tensor", f"{_TF}.framework.tensor:Tensor"),
    (f"{_TF}.ops.array_ops", "stack", f"{_TF}.ops.array_ops_stack:stack"),
    (f"{_TF}.ops.array_ops", "unstack", f"{_TF}.ops.array_ops_stack:unstack"),
    (f"{_TF}.ops.control_flow_ops", "Assert", f"{_TF}.ops.control_flow_assert:Assert"),
    (f"{_TF}.ops.control_flow_ops", "case", f"{_TF}.ops.control_flow_case:case"),
    (f"{_TF}.ops.control_flow_ops", "cond", f"{_TF}.ops.cond:cond"),
    (f"{_TF}.ops.control_flow_ops", "switch_case", f"{_TF}.ops.control_flow_switch_case:switch_case"),
    (f"{_TF}.ops.control_flow_ops", "while_loop", f"{_TF}.ops.while_loop:while_loop"),
)
