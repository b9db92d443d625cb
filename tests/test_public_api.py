"""The public names equal a list, so that names are added or removed only on purpose."""

import importlib
import inspect
import pkgutil

import pytest

import tensorflow_ipu as ipu

PUBLIC = {
    "tensorflow_ipu": """
        IPUConfig IPUInfeedQueue IPUMultiWorkerStrategy IPUMultiWorkerStrategyV1 IPUOutfeedMode IPUOutfeedQueue
        IPUStrategy IPUStrategyV1 clear_metrics compat compile compiler config counter_names counter_value distributed
        errors executables feeds keras loops machine metric_data metric_names metrics metrics_report ops optimizers
        pipelining precision precision_report report scopes serving sharding trace tracing
    """,
    "tensorflow_ipu.compat": "install uninstall",
    "tensorflow_ipu.compiler": "compile",
    "tensorflow_ipu.config": """
        AttributeMetadata DeviceConnectionType ExecutionProfileType IPUConfig IpuOptions MergeRemoteBuffersBehaviour
        SchedulingAlgorithm SelectionOrder StochasticRoundingBehaviour SyntheticDataCategory configure_ipu_system
        get_ipu_config get_num_of_ipus_in_device load move_variable_initialization_to_cpu reset_ipu_configuration
        reset_ipu_seed running_on_ipu_model save use_synthetic_data_for
    """,
    "tensorflow_ipu.distributed": "allgather allreduce broadcast",
    "tensorflow_ipu.executables": "application_compile_op cache_folder compile embedded_runtime set_cache",
    "tensorflow_ipu.errors": """
        ApplicationError ClusterError DeviceLimitError ForkedProcessError IpuError LibraryError NotConfiguredError
        RecompilationWarning RecoverableError UnrecoverableError
    """,
    "tensorflow_ipu.feeds": """
        BufferDataset IPUInfeedQueue IPUIterator IPUOutfeedMode IPUOutfeedQueue IPUOutfeedQueueIterator
        IPUOwnedIterator ScopedIPUOutfeedQueue dataset_benchmark dataset_extractor export_dataset_to_file
        export_inputs_to_file export_variables get_variable_handles import_variables infeed_benchmark
        set_wait_limit shut_down
    """,
    "tensorflow_ipu.keras": """
        FunctionalExtension FunctionalLayerPipelineStageAssignment FunctionalNestedModelPipelineStageAssignment
        KerasExtensionBase ModelExtension ModelLayerPipelineStageAssignment NestedModelPipelineStageAssignment
        PipelineStage ReplicatedMetricReductionMethod SequentialExtension SequentialLayerPipelineStageAssignment
        SequentialNestedModelPipelineStageAssignment layers optimizers
    """,
    "tensorflow_ipu.loops": "repeat while_loop",
    "tensorflow_ipu.machine": """
        BOW GC2 GC200 Kept Machine Memory NotAsked OperationTime Recipe Report Setting Suggestion Suggestions SupplyAndDemand
        System TaskTime Timeline advice_of_reading advice_on_state autosave changed compare_reports gather_seconds
        memory_of_parts report_of setting_of system_of systems told_apart
    """,
    "tensorflow_ipu.metrics": "clear_metrics counter_names counter_value metric_data metric_names metrics_report",
    "tensorflow_ipu.ops": """
        ReplicaGroups all_to_all_op compile_user_operation control_flow_ops cross_replica_ops custom_ops dynamic_ops
        embedding_ops f8_ops functional_ops gradient_capture image_ops internal_ops math_ops nn_ops normalization_ops
        popfloat_cast_to_gfloat rand_ops random_streams reduce_scatter_op reductions register_user_op_emulation
        replica_variables replication_ops rnn_ops slicing_ops statistics_ops vertex_edsl within_replica_ops
    """,
    "tensorflow_ipu.precision": "Figures PrecisionReport Scales TensorRow Trial precision_report",
    "tensorflow_ipu.optimizers": """
        AccumulationOptions CrossReplicaGradientAccumulationOptimizer CrossReplicaGradientAccumulationOptimizerV2
        CrossReplicaOptimizer GradientAccumulationOptimizer GradientAccumulationOptimizerV2
        GradientAccumulationReductionMethod IpuOptimizer MapGradientOptimizer ShardedOptimizer UpdateMemory
        apply_cross_replica_op apply_cross_replica_op_single update_memory
    """,
    "tensorflow_ipu.scopes": """
        ALL_IPUS SHARD_ATTRIBUTE available_memory frontend_attribute ipu_jit_scope ipu_scope ipu_shard is_on_ipu
        outside_compilation_scope partials_type poplar_options stochastic_rounding
    """,
    "tensorflow_ipu.serving": "export_keras export_pipeline export_single_step",
    "tensorflow_ipu.sharding": """
        dependencies enable_sharded_gradient_tape get_shard_from_colocation get_sharding has_attr propagate_sharding
    """,
    "tensorflow_ipu.tracing": "trace",
    "tensorflow_ipu.multi_worker_strategy": "IPUMultiWorkerStrategy IPUMultiWorkerStrategyV1 PopDistStrategy",
    "tensorflow_ipu.strategy": "IPUStrategy IPUStrategyV1 report",
}

# Tests of their own folders check these modules, or they are only for the package.
ELSEWHERE = {
    "tensorflow_ipu.cli",
    "tensorflow_ipu.hosts",
    "tensorflow_ipu.pipelining",
    "tensorflow_ipu.programs",
    "tensorflow_ipu.analysis",
}

# Additional arguments of this package; the contract of the compatibility layer checks those of the original.
OWN_ARGUMENTS = {
    ipu.IPUStrategy: "enable_keras_extensions=True, *, host_kernels=None)",
    ipu.IPUStrategy.prepare: "(self, fn, args=(), kwargs=None)",
    ipu.IPUInfeedQueue: "optimise_latency=False, *, replica_groups=None, **kwargs)",
}


@pytest.mark.parametrize("package", PUBLIC)
def test_public_names_are_those_of_the_list_and_are_there(package):
    module = importlib.import_module(package)
    assert list(module.__all__) == sorted(PUBLIC[package].split())
    assert [name for name in module.__all__ if getattr(module, name) is None] == []


def test_every_public_module_has_its_list_and_arguments_of_our_own_their_defaults():
    assert dir(ipu) == ipu.__all__
    modules = {
        f"tensorflow_ipu.{module.name}" for module in pkgutil.iter_modules(ipu.__path__) if module.name[0] != "_"
    }
    assert modules - ELSEWHERE == PUBLIC.keys() - {"tensorflow_ipu"}
    for value, expected in OWN_ARGUMENTS.items():
        parameters = inspect.signature(value).parameters.values()
        bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
        assert str(inspect.Signature(bare)).endswith(expected)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "custom_ops",
            "in `tensorflow_ipu.ops.custom_ops`, and `from tensorflow.python.ipu import custom_ops` works after",
        ),
        ("ipu_infeed_queue", "in `tensorflow_ipu.feeds`, and"),
        ("ipu_estimator", "has no attribute `ipu_estimator`$"),
        ("nothing", "has no attribute `nothing`$"),
    ],
)
def test_error_of_a_module_of_the_original_names_its_place(name, message, refused):
    refused(AttributeError, message, getattr, ipu, name)


def undocumented(module):
    """Returns the classes, methods and functions of a public module that are defined here and have no docstring."""
    for name in module.__all__:
        value = getattr(module, name)
        if not getattr(value, "__module__", "").startswith("tensorflow_ipu") or not callable(value):
            continue
        methods = vars(value).items() if inspect.isclass(value) else ()
        for path, part in [(name, value), *((f"{name}.{key}", method) for key, method in methods if key[0] != "_")]:
            described = part.__func__ if isinstance(part, classmethod | staticmethod) else part
            if (inspect.isroutine(described) or isinstance(described, type | property)) and not inspect.getdoc(part):
                yield f"{module.__name__}.{path}"


@pytest.mark.parametrize("package", [*PUBLIC, "tensorflow_ipu.pipelining"])
def test_public_classes_methods_and_functions_have_docstrings(package):
    assert list(undocumented(importlib.import_module(package))) == []
