"""The names of IPU TensorFlow and of what scripts for it use, as tables that `_names` reads.

An entry begins a line, and goes on in indented ones:

    [a. b.] note                  The modules that follow are below `a`, with second names below `b`. Errors add the
    note.
    module = place: name old=new  The module `place` has `name`, and `old` as `new`. `.place` is `tensorflow_ipu.place`.
        +other +other.*           All names of `other` are names of the module too, or those of all modules below it.
        absent name -- reason     The name exists nowhere.
"""

# Modules of the SDK, of packages beside it, and of the TensorFlow and Keras of its time.
MODULES = """\
[tensorflow.python.ipu.ops. tensorflow.python.ipu.]
all_to_all_op = .ops.all_to_all_op: all_gather all_to_all
control_flow_ops = .ops.control_flow_ops: barrier
cross_replica_ops = .ops.cross_replica_ops: assume_equal_across_replicas cross_replica_mean cross_replica_sum
custom_ops = .ops.custom_ops: codelet_expression_op cpu_user_operation precompiled_user_op
embedding_ops = .ops.embedding_ops: HostEmbedding HostEmbeddingOptimizerSpec HostEmbeddingSGDGAOptimizerSpec
    create_host_embedding embedding_lookup
functional_ops = .ops.functional_ops: outlined_function
image_ops = .ops.image_ops: normalise_image
internal_ops = .ops.internal_ops: fifo get_current_iteration_counter print_tensor remap remap_deduce
math_ops = .ops.math_ops: segment_sum serialized_matmul
nn_ops = .ops.nn_ops: ctc_beam_search_decoder ctc_beam_search_decoder_with_log_probs ctc_loss_v2 ctc_loss_with_log_probs
    gelu hard_sigmoid multi_conv nce_loss sampled_softmax_loss softmax swish
normalization_ops = .ops.normalization_ops: group_norm instance_norm layer_norm
rand_ops = .ops.rand_ops: dropout
reduce_scatter_op = .ops.reduce_scatter_op: reduce_scatter
replication_ops = .ops.replication_ops: replication_index
slicing_ops = .ops.slicing_ops: sequence_slice sequence_slice_pack sequence_slice_unpack
statistics_ops = .ops.statistics_ops: fixed_width_bins histogram histogram_normalize histogram_update
within_replica_ops = .ops.within_replica_ops: all_gather all_reduce reduce_scatter
application_compile_op = .executables.application_compile_op: experimental_application_compile_op
embedded_runtime = .executables.embedded_runtime: RuntimeContext embedded_runtime_call embedded_runtime_start
    embedded_runtime_start_and_call embedded_runtime_stop
f8_ops = .ops.f8_ops: Format QuarterTensor convert_from_f8 convert_to_f8 create_metadata f8_conv_1d f8_conv_2d
    f8_conv_3d f8_matmul
    absent canonicalise_input canonicalise_output -- it prepares operands for the SDK's kernels, not for users
grad_util_ops = .ops.gradient_capture: capture_upstream_gradients
pipelining_ops = .pipelining: OptimizerFunctionOutput PipelineSchedule PipelineStageOptions RecomputationMode pipeline
    recomputation_checkpoint
[tensorflow.python.ipu.ops.experimental. tensorflow.python.ipu.]
popfloat_cast_to_gfloat = .ops.popfloat_cast_to_gfloat: GenericFloat
[tensorflow.python.ipu.optimizers. tensorflow.python.ipu.]
cross_replica_optimizer = .optimizers: CrossReplicaOptimizer apply_cross_replica_op apply_cross_replica_op_single
gradient_accumulation_optimizer = .optimizers: CrossReplicaGradientAccumulationOptimizer
    CrossReplicaGradientAccumulationOptimizerV2 GradientAccumulationOptimizer GradientAccumulationOptimizerV2
ipu_optimizer = .optimizers: IpuOptimizer
map_gradient_optimizer = .optimizers: MapGradientOptimizer
sharded_optimizer = .optimizers: ShardedOptimizer
[ipu_tensorflow_addons.keras.layers. tensorflow.python.ipu.keras.layers.]
assume_equal_across_replicas = .keras.layers: AssumeEqualAcrossReplicas
ctc = .keras.layers: CTCInferenceLayer CTCLoss CTCPredictionsLayer
dense = .keras.layers: Dense SerialDense
dropout = .keras.layers: Dropout
effective_transformer = .keras.layers: EffectiveTransformer
embedding_lookup = .keras.layers: Embedding
f8_convert = .keras.layers: ConvertFromF8 ConvertToF8
normalization = .keras.layers: GroupNormalization InstanceNormalization LayerNormalization GroupNorm=GroupNormalization
    InstanceNorm=InstanceNormalization LayerNorm=LayerNormalization
recomputation = .keras.layers: RecomputationCheckpoint
rnn = .keras.layers: PopnnGRU PopnnLSTM GRU=PopnnGRU LSTM=PopnnLSTM
[keras.ipu.extensions. tensorflow.python.ipu.keras.extensions.]
pipeline_stage_assignment = .keras: FunctionalLayerPipelineStageAssignment FunctionalNestedModelPipelineStageAssignment
    ModelLayerPipelineStageAssignment NestedModelPipelineStageAssignment PipelineStage
    SequentialLayerPipelineStageAssignment SequentialNestedModelPipelineStageAssignment
extensions_base = .keras: KerasExtensionBase ReplicatedMetricReductionMethod
functional_extensions = +keras.ipu.extensions.pipeline_stage_assignment .keras: FunctionalExtension
model_extensions = +keras.ipu.extensions.pipeline_stage_assignment .keras: ModelExtension
sequential_extensions = +keras.ipu.extensions.pipeline_stage_assignment .keras: SequentialExtension
[keras.ipu. tensorflow.python.ipu.keras.]
extensions = +keras.ipu.extensions.*
[ipu_tensorflow_addons.keras. tensorflow.python.ipu.keras.]
layers = +ipu_tensorflow_addons.keras.layers.*
[]
tensorflow.python.ipu = .ops.functional_ops: outlined_function
[tensorflow.python.ipu.]
config = .config: AttributeMetadata DeviceConnectionType ExecutionProfileType IPUConfig MergeRemoteBuffersBehaviour
    SchedulingAlgorithm SelectionOrder StochasticRoundingBehaviour configure_ipu_system get_ipu_config
    reset_ipu_configuration running_on_ipu_model
data =
data.ops =
data.ops.dataset_ops = .feeds: BufferDataset
dataset_benchmark = .feeds: dataset_benchmark infeed_benchmark
dataset_extractor = .feeds: dataset_extractor export_variables get_variable_handles import_variables
distributed.host_collective_ops = .distributed: allgather allreduce broadcast
distributed.popdist_strategy = .multi_worker_strategy: PopDistStrategy
eager =
eager.backprop = .ops.gradient_capture: GradientCaptureContext GradientCaptureTape num_gradient_collection_tapes
gradient_accumulation = .optimizers: GradientAccumulationReductionMethod
horovod = .compat._horovod: Average Sum allgather allreduce broadcast broadcast_global_variables broadcast_variables
    init is_homogeneous is_initialized local_rank local_size mpi_enabled rank shutdown size
    absent Adasum -- there are sums and means alone
    absent DistributedGradientTape DistributedOptimizer -- `PopDistStrategy` and the optimizers of `ipu.optimizers`
    reduce gradients over all instances
horovod.ipu_multi_replica_strategy = .multi_worker_strategy: IPUMultiReplicaStrategy=PopDistStrategy
horovod.popdist_strategy = .multi_worker_strategy: PopDistStrategy
ipu_compiler = .compiler: compile
ipu_estimator =
    absent IPUEstimator IPUEstimatorSpec -- it needs `tf.estimator`, which TensorFlow removed in 2.16; write a training
    loop under `IPUStrategy`
ipu_infeed_queue = .feeds: IPUInfeedQueue IPUIterator IPUOwnedIterator
ipu_multi_worker_strategy = .multi_worker_strategy: IPUMultiWorkerStrategy IPUMultiWorkerStrategyV1
ipu_outfeed_queue = .feeds: IPUOutfeedMode IPUOutfeedQueue IPUOutfeedQueueIterator ScopedIPUOutfeedQueue
ipu_pipeline_estimator =
    absent IPUPipelineEstimator IPUPipelineEstimatorSpec -- it needs `tf.estimator`, which TensorFlow removed in 2.16;
    write a training loop under `IPUStrategy`
ipu_run_config =
    absent IPURunConfig RunConfig -- it needs `tf.estimator`, which TensorFlow removed in 2.16; write a training loop
    under `IPUStrategy`
ipu_session_run_hooks =
    absent IPULoggingTensorHook -- it needs `tf.estimator`, which TensorFlow removed in 2.16; write a training loop
    under `IPUStrategy`
ipu_strategy = .strategy: IPUStrategy IPUStrategyV1
loops = .loops: repeat while_loop
ops.experimental =
scopes = .scopes: frontend_attribute ipu_jit_scope ipu_scope ipu_shard outside_compilation_scope partials_type
    stochastic_rounding
serving = .serving: export_keras export_pipeline export_single_step
sharding = .sharding: dependencies enable_sharded_gradient_tape get_shard_from_colocation get_sharding has_attr
    propagate_sharding
utils = +tensorflow.python.ipu.config .config: SyntheticDataCategory get_num_of_ipus_in_device
    move_variable_initialization_to_cpu reset_ipu_seed use_synthetic_data_for .feeds: export_dataset_to_file
    export_inputs_to_file
vertex_edsl = .ops.vertex_edsl: constant
    absent PlaceholderVertexExpr -- `codelet_expression_op` alone makes what an expression is given
ops =
optimizers = +tensorflow.python.ipu.optimizers.* +tensorflow.python.ipu.gradient_accumulation
keras = +keras.ipu.extensions.pipeline_stage_assignment
    absent Model PipelineModel PipelineSequential Sequential -- use `tf.keras.Model` or `tf.keras.Sequential` in the
    strategy's scope, with its methods `set_gradient_accumulation_options` and `set_pipelining_options`, as since 2021
keras.optimizers = .keras.optimizers: CrossReplicaOptimizer GradientAccumulationOptimizer MapGradientOptimizer
keras.pipeline = +keras.ipu.extensions.pipeline_stage_assignment
distributed = +tensorflow.python.ipu.distributed.*
[keras.]
ipu = +keras.ipu.extensions.pipeline_stage_assignment .keras: ReplicatedMetricReductionMethod
ipu.layers.capture_upstream_gradients = .keras.layers: CaptureActivationGradients CaptureUpstreamGradients
ipu.optimizers.adam = .keras.optimizers: ALSOptimizerAdam
ipu.optimizers.als_optimizer = .keras.optimizers: ALSDefaults ALSGradientAccumulationOptimizer ALSOptimizer
ipu.optimizers.gradient_accumulation_optimizer = .keras.optimizers: GradientAccumulationOptimizer
ipu.optimizers.gradient_descent = .keras.optimizers: ALSOptimizerSGD
ipu.optimizers.rmsprop = .keras.optimizers: ALSOptimizerRMSProp
ipu.layers = +keras.ipu.layers.*
ipu.optimizers = +keras.ipu.optimizers.*
[]
ipu_tensorflow_addons =
ipu_tensorflow_addons.keras =
ipu_tensorflow_addons.keras.optimizers.adam_optimizer = .keras.optimizers: AdamIpuOptimizer
ipu_tensorflow_addons.keras.optimizers.ipu_optimizer_base = .keras.optimizers: IpuOptimizerBase
ipu_tensorflow_addons.keras.optimizers.lamb_optimizer = .keras.optimizers: LAMBIpuOptimizer
ipu_tensorflow_addons.keras.optimizers.sgd_optimizer = .keras.optimizers: SGDIpuOptimizer
ipu_tensorflow_addons.layers = .ops.rnn_ops: PopnnAUGRU PopnnDynamicGRU PopnnDynamicLSTM PopnnGRU PopnnLSTM
ipu_tensorflow_addons.layers.rnn_ops = +ipu_tensorflow_addons.layers
ipu_tensorflow_addons.v1 =
ipu_tensorflow_addons.v1.layers = +ipu_tensorflow_addons.layers
ipu_tensorflow_addons.v1.layers.rnn_ops = +ipu_tensorflow_addons.layers
ipu_tensorflow_addons.keras.optimizers = +ipu_tensorflow_addons.keras.optimizers.*
libpvti = .compat._pvti: Graph HeatmapDouble TraceChannel Tracepoint checkTraceChannel createTraceChannel
    disableTraceChannel enableTraceChannel instrument instrument_fn listTraceChannel traceDrivers tracePoplar
tensorflow.compiler.plugin =
tensorflow.compiler.plugin.poplar =
popdist = .compat._popdist: checkNumIpusPerReplica execute_on_instances finalizeBackend getDeviceId getInstanceIndex
    getLocalInstanceIndex getNumInstances getNumIpusPerReplica getNumLocalReplicas getNumTotalReplicas
    getReplicaIndexOffset init isBackendInitialized isPopdistEnvSet synchronize initializeBackend=init
popdist.tensorflow = .compat._popdist: set_ipu_config
horovod =
horovod.tensorflow = +tensorflow.python.ipu.horovod
[tensorflow.compiler.plugin.poplar.] The SDK's protocol buffers do not exist here; `IPUConfig` and `IpuOptions` hold
    what they held.
driver =
[tensorflow.compiler.plugin.poplar.] The SDK's generated wrappers do not exist here; the functions of
    `tensorflow.python.ipu` take their place.
ops =
ops.gen_ipu_ops =
[tensorflow.] TensorFlow 2 has no `tf.contrib`: look for the function in `tf`, `tf.compat.v1` or a package of its own.
contrib =
[tensorflow.] TensorFlow removed estimators in 2.16: train a Keras model by `fit`, or write a training loop under
    `IPUStrategy`.
estimator =
[tensorflow.python.]
keras.datasets =
keras.datasets.boston_housing = keras.datasets.boston_housing: load_data
keras.datasets.cifar10 = keras.datasets.cifar10: load_data
keras.datasets.cifar100 = keras.datasets.cifar100: load_data
keras.datasets.fashion_mnist = keras.datasets.fashion_mnist: load_data
keras.datasets.mnist = keras.datasets.mnist: load_data
keras.datasets.imdb = keras.datasets.imdb: get_word_index load_data
keras.datasets.reuters = keras.datasets.reuters: get_label_names get_word_index load_data
training.tracking =
data.experimental.ops.distribute_options = tensorflow.python.data.ops.options: AutoShardPolicy DistributeOptions
    ExternalStatePolicy
data.experimental.ops.optimization_options = tensorflow.python.data.ops.options: OptimizationOptions
data.experimental.ops.threading_options = tensorflow.python.data.ops.options: ThreadingOptions
distribute.distribution_strategy_context = tensorflow.python.distribute.distribute_lib: enter_or_assert_strategy
    experimental_set_strategy get_cross_replica_context get_replica_context get_strategy
    get_strategy_and_replica_context has_strategy in_cross_replica_context in_variable_sync_on_read_context
    variable_sync_on_read_context
training.saving.functional_saver = tensorflow.python.checkpoint.functional_saver: MultiDeviceSaver
training.training_ops = tensorflow.python.ops.gen_training_ops: resource_apply_adagrad resource_apply_adam
    resource_apply_ftrl resource_apply_gradient_descent resource_apply_keras_momentum resource_apply_momentum
    resource_apply_rms_prop
training.tracking.asset = tensorflow.python.trackable.asset: Asset
training.tracking.base = tensorflow.python.trackable.base: CheckpointInitialValue CheckpointInitialValueCallable
    NoRestoreSaveable Trackable TrackableReference no_automatic_dependency_tracking
    no_automatic_dependency_tracking_scope no_manual_dependency_tracking_scope
training.tracking.data_structures = tensorflow.python.trackable.data_structures: List ListWrapper Mapping NoDependency
    TrackableDataStructure set_list_item set_tuple_item sticky_attribute_assignment wrap_or_unwrap
training.tracking.graph_view = tensorflow.python.checkpoint.graph_view: ObjectGraphView
training.tracking.layer_utils = tensorflow.python.trackable.layer_utils: AttributeSentinel MutationSentinel
    filter_empty_layer_containers has_weights is_layer
training.tracking.python_state = tensorflow.python.trackable.python_state: PythonState
training.tracking.util = tensorflow.python.checkpoint.checkpoint: Checkpoint CheckpointV1 TrackableSaver add_variable
    capture_dependencies frozen_saver gather_initializers list_objects
training.tracking.tracking = tensorflow.python.trackable.asset: Asset tensorflow.python.trackable.autotrackable:
    AutoTrackable tensorflow.python.trackable.resource: CapturableResource ResourceTracker TrackableResource
    resource_tracker_scope
[keras.] Keras 3 has its public names in `keras`, `keras.layers`, `keras.optimizers` and so on.
engine =
engine.base_layer = keras.layers: Layer
engine.functional = .keras._keras3: Functional
engine.input_layer = keras.layers: Input InputLayer
engine.input_spec = keras.layers: InputSpec
engine.keras_tensor = keras: KerasTensor
engine.sequential = keras: Sequential
engine.training = keras: Model
mixed_precision.policy = keras.mixed_precision: Policy global_policy set_global_policy set_policy=set_global_policy
optimizer_v2 =
optimizer_v2.learning_rate_schedule = keras.optimizers.schedules: CosineDecay CosineDecayRestarts ExponentialDecay
    InverseTimeDecay LearningRateSchedule PiecewiseConstantDecay PolynomialDecay deserialize serialize
optimizer_v2.optimizer_v2 = keras.optimizers: OptimizerV2=Optimizer
utils.np_utils = keras.utils: normalize to_categorical
[keras.optimizer_v2.]
adadelta = keras.optimizers: Adadelta
adagrad = keras.optimizers: Adagrad
adam = keras.optimizers: Adam
adamax = keras.optimizers: Adamax
ftrl = keras.optimizers: Ftrl
gradient_descent = keras.optimizers: SGD
nadam = keras.optimizers: Nadam
rmsprop = keras.optimizers: RMSprop
[] That package no longer installs, and these are the names of it that programs for IPUs use.
tensorflow_addons =
tensorflow_addons.activations = .compat._addons: gelu
tensorflow_addons.layers = .compat._addons: GELU InstanceNormalization WeightNormalization tensorflow.keras.layers:
    GroupNormalization
tensorflow_addons.losses = .compat._addons: SigmoidFocalCrossEntropy sigmoid_focal_crossentropy
tensorflow_addons.metrics = .compat._addons: F1Score MatthewsCorrelationCoefficient
tensorflow_addons.optimizers = .compat._addons: AdamW DecoupledWeightDecayExtension SGDW
    extend_with_decoupled_weight_decay
    .keras.optimizers: LAMB=LAMBIpuOptimizer
tensorflow_addons.layers.gelu = +tensorflow_addons.layers
tensorflow_addons.layers.normalizations = +tensorflow_addons.layers
tensorflow_addons.layers.wrappers = +tensorflow_addons.layers
tensorflow_addons.losses.focal_loss = +tensorflow_addons.losses
tensorflow_addons.metrics.f_scores = +tensorflow_addons.metrics
tensorflow_addons.optimizers.lamb = +tensorflow_addons.optimizers
tensorflow_addons.optimizers.weight_decay_optimizers = +tensorflow_addons.optimizers
"""

# Modules that earlier releases had, or that people look for, and what became of them.
GONE = """\
[]
tensorflow.python.ipu.ops.rnn_ops = the SDK moved it to the package `ipu_tensorflow_addons`
tensorflow.python.ipu.ops.summary_ops = the SDK removed it; read `tf.summary` or what an outfeed brings
keras.keras_parameterized = it served Keras's own tests
keras.losses.losses_utils = Keras 3 takes a loss's `reduction` as a string
keras.testing_utils = it served Keras's own tests
[keras.ipu.extensions.]
data_adapter extensions_util polling_thread register_extensions = it served `fit`, `evaluate` and `predict` themselves,
    which tensorflow_ipu has made anew
[tensorflow.contrib.]
all_reduce mpi_collectives nccl = use `tf.distribute`, or the collectives of `tensorflow.python.ipu`
autograph = it is `tf.autograph`
batching = use `tf.nondifferentiable_batch_function`
bayesflow distributions integrate = it is in the package `tensorflow_probability`
bigtable cloud ffmpeg hadoop kafka kinesis libsvm = it is in the package `tensorflow_io`
boosted_trees decision_trees tensor_forest = it became the package `tensorflow_decision_forests`
checkpoint = use `tf.train.Checkpoint`
cluster_resolver = it is `tf.distribute.cluster_resolver`
compiler xla = use `ipu_compiler.compile` of `tensorflow.python.ipu`, or `tf.function(jit_compile=True)`
crf seq2seq = it moved to `tensorflow_addons`, which no longer installs; write it with `tf.while_loop` or `tf.scan`
cudnn_rnn = use `tf.keras.layers.LSTM` and `GRU`, or `PopnnLSTM` and `PopnnGRU` of `ipu_tensorflow_addons`
data = use `tf.data` and `tf.data.experimental`
distribute parameter_server = use `IPUStrategy` or `tf.distribute`
eager = use `tf.GradientTape`, `tf.Variable` and `tf.function`
estimator factorization kernel_methods learn linear_optimizer timeseries = it needs estimators, which TensorFlow removed
    in 2.16; train a Keras model by `fit`, or write a training loop
feature_column = it is `tf.feature_column`
framework = use `tf.compat.v1.train.get_or_create_global_step`, `tf.compat.v1.get_collection` and `tf.nest`; `arg_scope`
    is in the package `tf_slim`
gan = it became the package `tensorflow_gan`
graph_editor = edit the `tf.compat.v1.GraphDef` of a graph, and import it again
grid_rnn legacy_seq2seq rnn = use `tf.compat.v1.nn.rnn_cell`, `tf.compat.v1.nn.dynamic_rnn` or `tf.keras.layers`, or
    `PopnnLSTM` and `PopnnGRU` of `ipu_tensorflow_addons`
image = use `tf.image` and `tf.raw_ops.ImageProjectiveTransformV3`
ipu = the SDK moved it to `tensorflow.python.ipu`
keras = it is `tf.keras`
layers = use `tf.compat.v1.layers` or `tf.keras.layers`, `tf.initializers` and `tf.keras.regularizers`; the package
    `tf_slim` has the functions themselves, in `tf_slim.layers`
linalg = use `tf.linalg`
lite = it is `tf.lite`
lookup = use `tf.lookup`
losses = use `tf.compat.v1.losses` or `tf.keras.losses`
memory_stats = use `tf.config.experimental.get_memory_info`, or a report of `tensorflow_ipu`
metrics = use `tf.compat.v1.metrics` or `tf.keras.metrics`
mixed_precision = use `tf.keras.mixed_precision`
model_pruning quantize quantization = it became the package `tensorflow_model_optimization`
nearest_neighbor periodic_resample resampler = write it with `tf.gather` and `tf.image`
nn = use `tf.nn`
opt optimizer_v2 = use `tf.compat.v1.train` or `tf.keras.optimizers`
predictor saved_model session_bundle = use `tf.saved_model`
signal = it is `tf.signal`
slim = it is the package `tf_slim`
stateless = use `tf.random.stateless_uniform` and the other functions of `tf.random` with such names
summary tensorboard = use `tf.summary`
tensorrt = it is `tf.experimental.tensorrt`
text = it became the package `tensorflow_text`
tpu = use `IPUStrategy`; there are no TPUs here
training = use `tf.train` and `tf.compat.v1.train`; in place of `HParams`, a class of your own
"""

# Names that modules of today have lost.
LOST = """\
[]
tensorflow = python=tensorflow.python contrib=tensorflow.contrib estimator=tensorflow.estimator
tensorflow.compat.v1 = python=tensorflow.python contrib=tensorflow.contrib estimator=tensorflow.estimator
tensorflow.data.experimental = .compat._dataset_stats: StatsAggregator StatsOptions bytes_produced_stats latency_stats
tensorflow.compat.v1.data.experimental = .compat._dataset_stats: StatsAggregator StatsOptions bytes_produced_stats
    latency_stats
tensorflow.python = ipu=tensorflow.python.ipu
[tensorflow.python.]
data.ops.dataset_ops = tensorflow.python.data.ops.options: Options
distribute.values = tensorflow.python.distribute.ps_values: AggregatingVariable
framework.ops = tensorflow.python.eager.context: executing_eagerly tensorflow.python.framework.indexed_slices:
    IndexedSlices IndexedSlicesValue convert_n_to_tensor_or_indexed_slices convert_to_tensor_or_indexed_slices
    tensorflow.python.framework.tensor: Tensor tensorflow.python.framework.tensor_conversion_registry:
    register_tensor_conversion_function
framework.tensor_util = tensorflow.python.ops.shape_util: maybe_set_static_shape shape_tensor
ops.array_ops = tensorflow.python.ops.array_ops_stack: stack unstack
ops.control_flow_ops = tensorflow.python.framework.smart_cond: smart_case smart_cond smart_constant_value
    tensorflow.python.ops.cond: cond cond_for_tf_v2 tensorflow.python.ops.control_flow_assert: Assert
    tensorflow.python.ops.control_flow_case: case case_v2 tensorflow.python.ops.control_flow_switch_case: switch_case
    tensorflow.python.ops.while_loop: while_loop while_loop_v2
eager.function = tensorflow: defun=function
ops.functional_ops = tensorflow.python.ops.map_fn: map_fn
ops.gradients_impl = tensorflow.python.ops.gradients_util: _GradientsHelper
ops.variable_scope = tensorflow.python.ops.resource_variables_toggle: enable_resource_variables
    tensorflow.python.ops.variable_v1: default_variable_creator tensorflow.python.ops.variables:
    default_variable_creator_v2
ops.variables = tensorflow.python.ops.ref_variable: RefVariable tensorflow.python.ops.variable_v1: VariableV1
    is_variable_initialized
util.nest = tensorflow.python.util.nest: is_sequence=is_nested
"""

# The place of a name, and what becomes of its use.
RECORDED: dict[str, str] = {
    "tensorflow_ipu.config:move_variable_initialization_to_cpu": "initial values are computed on the host in any case",
    "tensorflow_ipu.ops.internal_ops:remap": "it asks for a layout on tiles, of which there are none here",
    "tensorflow_ipu.ops.internal_ops:remap_deduce": "it asks for a layout on tiles, of which there are none here",
    "tensorflow_ipu.scopes:ipu_jit_scope": "`ipu_compiler.compile` and `IPUStrategy.run` say what becomes one program",
    "tensorflow_ipu.sharding:enable_sharded_gradient_tape": "gradients follow the shards of their operations in any case",
}

# What functions of 2020 set, which were in `utils` before there was `IPUConfig`.
OLD_OPTIONS = {
    "auto_select_ipus": "auto_select_ipus",
    "create_ipu_config": "",
    "select_ipus": "select_ipus",
    "set_compilation_options": "compilation_poplar_options",
    "set_convolution_options": "convolutions",
    "set_experimental_multi_replica_distribution_options": "experimental.multi_replica_distribution",
    "set_floating_point_behaviour_options": "floating_point_behaviour",
    "set_gcl_options": "gcl_poplar_options",
    "set_io_tile_options": "io_tiles",
    "set_ipu_connection_type": "device_connection",
    "set_ipu_model_options": "ipu_model",
    "set_ipu_options": "",
    "set_matmul_options": "matmuls",
    "set_norm_options": "norms",
    "set_optimization_options": "optimizations",
    "set_pooling_options": "pooling",
    "set_recomputation_options": "allow_recompute",
    "set_serialization_options": "serialization_output_folder",
}
