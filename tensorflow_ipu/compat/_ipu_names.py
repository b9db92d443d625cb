"""The modules of `tensorflow.python.ipu` and of its compiler plugin, with their names and the places of these."""

from __future__ import annotations

from tensorflow_ipu.compat._companion_names import HOROVOD
from tensorflow_ipu.compat._table import Module, Target, absent, here

IPU = "tensorflow.python.ipu"
POPLAR = "tensorflow.compiler.plugin.poplar"

_NO_ESTIMATOR = "it needs `tf.estimator`, which TensorFlow removed in 2.16; write a training loop under `IPUStrategy`"

_CONFIG = here(
    "tensorflow_ipu.config",
    "AttributeMetadata DeviceConnectionType ExecutionProfileType IPUConfig",
    "MergeRemoteBuffersBehaviour SchedulingAlgorithm SelectionOrder StochasticRoundingBehaviour",
    "configure_ipu_system get_ipu_config reset_ipu_configuration running_on_ipu_model",
)

# Modules of operations whose names are in the module of `tensorflow_ipu.ops` of the same name.
_SAME_OPS: dict[str, str] = {
    "all_to_all_op": "all_gather all_to_all",
    "control_flow_ops": "barrier",
    "cross_replica_ops": "assume_equal_across_replicas cross_replica_mean cross_replica_sum",
    "custom_ops": "codelet_expression_op cpu_user_operation precompiled_user_op",
    "embedding_ops": (
        "HostEmbedding HostEmbeddingOptimizerSpec HostEmbeddingSGDGAOptimizerSpec create_host_embedding"
        " embedding_lookup"
    ),
    "functional_ops": "outlined_function",
    "image_ops": "normalise_image",
    "internal_ops": "fifo get_current_iteration_counter print_tensor remap remap_deduce",
    "math_ops": "segment_sum serialized_matmul",
    "nn_ops": (
        "ctc_beam_search_decoder ctc_beam_search_decoder_with_log_probs ctc_loss_v2 ctc_loss_with_log_probs"
        " gelu hard_sigmoid multi_conv nce_loss sampled_softmax_loss softmax swish"
    ),
    "normalization_ops": "group_norm instance_norm layer_norm",
    "rand_ops": "dropout",
    "reduce_scatter_op": "reduce_scatter",
    "replication_ops": "replication_index",
    "slicing_ops": "sequence_slice sequence_slice_pack sequence_slice_unpack",
    "statistics_ops": "fixed_width_bins histogram histogram_normalize histogram_update",
    "within_replica_ops": "all_gather all_reduce reduce_scatter",
}

# All modules of operations. They are in `tensorflow.python.ipu.ops`, and in `tensorflow.python.ipu` itself.
_OPS: dict[str, dict[str, Target]] = {
    **{module: here(f"tensorflow_ipu.ops.{module}", names) for module, names in _SAME_OPS.items()},
    "application_compile_op": here(
        "tensorflow_ipu.executables.application_compile_op", "experimental_application_compile_op"
    ),
    "embedded_runtime": here(
        "tensorflow_ipu.executables.embedded_runtime",
        "RuntimeContext embedded_runtime_call embedded_runtime_start",
        "embedded_runtime_start_and_call embedded_runtime_stop",
    ),
    "f8_ops": {
        **here(
            "tensorflow_ipu.ops.f8_ops",
            "Format QuarterTensor convert_from_f8 convert_to_f8 create_metadata f8_conv_1d f8_conv_2d",
            "f8_conv_3d f8_matmul",
        ),
        **absent(
            "canonicalise_input canonicalise_output", reason="it prepares operands for the SDK's kernels, not for users"
        ),
    },
    "grad_util_ops": here("tensorflow_ipu.ops.gradient_capture", "capture_upstream_gradients"),
    "pipelining_ops": here(
        "tensorflow_ipu.pipelining",
        "OptimizerFunctionOutput PipelineSchedule PipelineStageOptions RecomputationMode",
        "pipeline recomputation_checkpoint",
    ),
}

# Modules of optimizers. They are in `tensorflow.python.ipu.optimizers`, and in `tensorflow.python.ipu` itself.
_OPTIMIZERS: dict[str, dict[str, Target]] = {
    "cross_replica_optimizer": here(
        "tensorflow_ipu.optimizers", "CrossReplicaOptimizer apply_cross_replica_op apply_cross_replica_op_single"
    ),
    "gradient_accumulation_optimizer": here(
        "tensorflow_ipu.optimizers",
        "CrossReplicaGradientAccumulationOptimizer",
        "CrossReplicaGradientAccumulationOptimizerV2 GradientAccumulationOptimizer",
        "GradientAccumulationOptimizerV2",
    ),
    "ipu_optimizer": here("tensorflow_ipu.optimizers", "IpuOptimizer"),
    "map_gradient_optimizer": here("tensorflow_ipu.optimizers", "MapGradientOptimizer"),
    "sharded_optimizer": here("tensorflow_ipu.optimizers", "ShardedOptimizer"),
}

_REDUCTION: dict[str, Target] = here("tensorflow_ipu.optimizers", "GradientAccumulationReductionMethod")

_WORKERS = "tensorflow_ipu.multi_worker_strategy"
_HOST_COLLECTIVES: dict[str, Target] = here("tensorflow_ipu.distributed", "allgather allreduce broadcast")

# The other modules, by their path below `tensorflow.python.ipu`.
_MODULES: dict[str, dict[str, Target]] = {
    "config": _CONFIG,
    "data": {},
    "data.ops": {},
    "data.ops.dataset_ops": here("tensorflow_ipu.feeds", "BufferDataset"),
    "dataset_benchmark": here("tensorflow_ipu.feeds", "dataset_benchmark infeed_benchmark"),
    "dataset_extractor": here(
        "tensorflow_ipu.feeds", "dataset_extractor export_variables get_variable_handles import_variables"
    ),
    "distributed": {**_HOST_COLLECTIVES, **here(_WORKERS, "PopDistStrategy")},
    "distributed.host_collective_ops": _HOST_COLLECTIVES,
    "distributed.popdist_strategy": here(_WORKERS, "PopDistStrategy"),
    "eager": {},
    "eager.backprop": here(
        "tensorflow_ipu.ops.gradient_capture",
        "GradientCaptureContext GradientCaptureTape num_gradient_collection_tapes",
    ),
    "gradient_accumulation": _REDUCTION,
    "horovod": HOROVOD,
    "horovod.ipu_multi_replica_strategy": {"IPUMultiReplicaStrategy": f"{_WORKERS}:PopDistStrategy"},
    "horovod.popdist_strategy": here(_WORKERS, "PopDistStrategy"),
    "ipu_compiler": here("tensorflow_ipu.compiler", "compile"),
    "ipu_estimator": absent("IPUEstimator IPUEstimatorSpec", reason=_NO_ESTIMATOR),
    "ipu_infeed_queue": here("tensorflow_ipu.feeds", "IPUInfeedQueue IPUIterator IPUOwnedIterator"),
    "ipu_multi_worker_strategy": here(_WORKERS, "IPUMultiWorkerStrategy IPUMultiWorkerStrategyV1"),
    "ipu_outfeed_queue": here(
        "tensorflow_ipu.feeds", "IPUOutfeedMode IPUOutfeedQueue IPUOutfeedQueueIterator ScopedIPUOutfeedQueue"
    ),
    "ipu_pipeline_estimator": absent("IPUPipelineEstimator IPUPipelineEstimatorSpec", reason=_NO_ESTIMATOR),
    "ipu_run_config": absent("IPURunConfig RunConfig", reason=_NO_ESTIMATOR),
    "ipu_session_run_hooks": absent("IPULoggingTensorHook", reason=_NO_ESTIMATOR),
    "ipu_strategy": here("tensorflow_ipu.strategy", "IPUStrategy IPUStrategyV1"),
    "loops": here("tensorflow_ipu.loops", "repeat while_loop"),
    "ops.experimental": {},
    "ops.experimental.popfloat_cast_to_gfloat": here("tensorflow_ipu.ops.popfloat_cast_to_gfloat", "GenericFloat"),
    "scopes": here(
        "tensorflow_ipu.scopes",
        "frontend_attribute ipu_jit_scope ipu_scope ipu_shard outside_compilation_scope",
        "partials_type stochastic_rounding",
    ),
    "serving": here("tensorflow_ipu.serving", "export_keras export_pipeline export_single_step"),
    "sharding": here(
        "tensorflow_ipu.sharding",
        "dependencies enable_sharded_gradient_tape get_shard_from_colocation get_sharding has_attr",
        "propagate_sharding",
    ),
    "utils": {
        **_CONFIG,
        **here(
            "tensorflow_ipu.config",
            "SyntheticDataCategory get_num_of_ipus_in_device move_variable_initialization_to_cpu",
            "reset_ipu_seed use_synthetic_data_for",
        ),
        **here("tensorflow_ipu.feeds", "export_dataset_to_file export_inputs_to_file"),
    },
    "vertex_edsl": {
        **absent("PlaceholderVertexExpr", reason="`codelet_expression_op` alone makes what an expression is given"),
        **here("tensorflow_ipu.ops.vertex_edsl", "constant"),
    },
}

# Modules that earlier releases of the SDK had, or that people look for here.
GONE: dict[str, str] = {
    f"{IPU}.ops.rnn_ops": "the SDK moved it to the package `ipu_tensorflow_addons`",
    f"{IPU}.ops.summary_ops": "the SDK removed it; read `tf.summary` or what an outfeed brings",
}


def _all_of(modules: dict[str, dict[str, Target]]) -> dict[str, Target]:
    return {name: target for names in modules.values() for name, target in names.items()}


def _modules() -> dict[str, Module]:
    below = {
        **_MODULES,
        **{f"ops.{name}": rows for name, rows in _OPS.items()},
        **{f"optimizers.{name}": rows for name, rows in _OPTIMIZERS.items()},
        "ops": {},
        "optimizers": {**_all_of(_OPTIMIZERS), **_REDUCTION},
    }
    top = {"outlined_function": _OPS["functional_ops"]["outlined_function"]}
    return {IPU: Module(top), **{f"{IPU}.{name}": Module(rows) for name, rows in below.items()}}


# Modules that are reached under a second name.
ALIASES: dict[str, str] = {
    **{f"{IPU}.{name}": f"{IPU}.ops.{name}" for name in _OPS},
    **{f"{IPU}.{name}": f"{IPU}.optimizers.{name}" for name in _OPTIMIZERS},
    f"{IPU}.popfloat_cast_to_gfloat": f"{IPU}.ops.experimental.popfloat_cast_to_gfloat",
}

_GENERATED = (
    "The SDK's generated wrappers do not exist here; the functions of `tensorflow.python.ipu` take their place."
)
_PROTOS = "The SDK's protocol buffers do not exist here; `IPUConfig` and `IpuOptions` hold what they held."

MODULES: dict[str, Module] = {
    # A package of its own in the SDK.
    "libpvti": Module(
        here(
            "tensorflow_ipu.compat._pvti",
            "Graph HeatmapDouble TraceChannel Tracepoint checkTraceChannel createTraceChannel",
            "disableTraceChannel enableTraceChannel instrument instrument_fn listTraceChannel traceDrivers",
            "tracePoplar",
        )
    ),
    **_modules(),
    "tensorflow.compiler.plugin": Module(),
    POPLAR: Module(),
    f"{POPLAR}.driver": Module(note=_PROTOS),
    f"{POPLAR}.ops": Module(note=_GENERATED),
    f"{POPLAR}.ops.gen_ipu_ops": Module(note=_GENERATED),  # Empty: programs import it without using it.
}
