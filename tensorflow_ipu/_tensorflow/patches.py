"""What of TensorFlow and Keras is replaced by the package: the table of it.

Whoever replaces a row says by what (`by`) and applies it, for as long as `lasts` says; then it is undone. Two rows last
from the import on, since nothing narrower works; `tests/test_patches.py` holds that there are no others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tensorflow_ipu._tensorflow._patch import Changes, Hook, Lifetime, Patch

__all__ = ["TABLE", "Changes", "Hook", "Lifetime", "Patch", "in_trace"]

_FUNCTIONS = "tensorflow.python.eager.polymorphic_function"

AUTOGRAPH_RULES = Patch(
    "tensorflow.python.autograph.core.config:CONVERSION_RULES",
    why="AutoGraph leaves TensorFlow's own code alone by this list, and rewrites all else that a traced function calls."
    " To rewrite the package takes seconds of the first trace, and gives the user its lines in the place of their own."
    " The rule names this package, whose functions may be called in any trace: no other code is treated otherwise.",
    lasts=Lifetime.IMPORT,
    until="AutoGraph takes rules from packages",
)

JIT_COMPILE_AUTO = Patch(
    "keras.src.trainers.trainer:Trainer._resolve_auto_jit_compile",
    why="Keras compiles models by itself where TensorFlow lists anything but CPUs, and IPUs are listed from the import on."
    " This keeps plain models what they are without the package.",
    lasts=Lifetime.IMPORT,
    until="Keras asks for the device of the model",
)

OPERATIONS = Patch(
    "tensorflow.python.framework.ops:Graph._create_op_helper",
    why="Layers and checks of programs are marked for the host's kernels as they are put into a graph. Gradients, loops and"
    " branches put theirs in on ways of their own, which all end here.",
    lasts=Lifetime.TRACE,
    until="graphs call a hook with each new operation",
)

CONVOLUTION_GRADIENT = Patch(
    "tensorflow.python.framework.ops:gradient_registry._registry.Conv2D.type",
    why="XLA:CPU looks for convolutions that it has fast code for outside of loops alone; see `replicas/_convolutions.py`."
    " A gradient is registered once and for all, so that the entry is replaced.",
    lasts=Lifetime.TRACE,
    until="https://github.com/openxla/xla/blob/main/xla/service/cpu/conv_canonicalization.cc looks into loops",
)

PRINT = Patch(
    "tensorflow.python.ops.gen_logging_ops:print_v2",
    why="XLA compiles no print, so what `tf.print` ends in becomes a part of the program that the host runs. `tf.print` itself"
    " stays: a script may bind it to a name of its own.",
    lasts=Lifetime.TRACE,
    until="TensorFlow's bridge to XLA hands `PrintV2` to the host",
)

PRINTED_TEXT = Patch(
    "tensorflow.python.ops.string_ops:string_format",
    why="XLA has no strings either, so the host puts together what it prints. `tf.strings.format` itself stays.",
    lasts=Lifetime.TRACE,
    until="see `PRINT`",
)

RANDOM_OPERATIONS = Patch(
    *(
        f"tensorflow.python.ops.gen_random_ops:{name}"
        for name in (
            "multinomial",
            "parameterized_truncated_normal",
            "random_shuffle",
            "random_standard_normal",
            "random_uniform",
            "random_uniform_int",
            "truncated_normal",
        )
    ),
    why="XLA draws what these ask for from a source of the executable, which nobody can seed, and which replicas share. In"
    " programs they become stateless operations with the replica's own seeds.",
    lasts=Lifetime.TRACE,
    until="XLA:CPU takes a seed by run and by device",
)

GENERATOR_REPLICAS = Patch(
    "tensorflow.python.ops.stateful_random_ops:get_replica_id",
    why="A `tf.random.Generator` derives each replica's numbers from the replica's index, which goes on when all replicas are"
    " to draw the same. In programs it asks for the replica's random stream.",
    lasts=Lifetime.TRACE,
    until="`tf.distribute` has a context that says which random numbers a replica draws",
)

FUSED_BATCH_NORMS = Patch(
    *(
        f"tensorflow.python.ops.gen_nn_ops:{name}"
        for name in ("_fused_batch_norm", "fused_batch_norm_v2", "fused_batch_norm_v3")
    ),
    *(f"tensorflow:raw_ops.FusedBatchNorm{version}" for version in ("", "V2", "V3")),
    why="`norms.experimental.distributed_batch_norm_replica_group_size` has replicas share the statistics of what TensorFlow"
    " makes one operation, which knows no replicas.",
    lasts=Lifetime.TRACE,
    until="TensorFlow's operation has a group of replicas",
)

KERAS_MOMENTS = Patch(
    "keras:layers.BatchNormalization._moments",
    why="The same for Keras's layer, which is fused on IPUs. Its own `synchronized` knows no groups.",
    lasts=Lifetime.TRACE,
    until="Keras's `synchronized` takes a number of replicas",
)

KERAS_SEEDS = Patch(
    "keras:random.SeedGenerator.next",
    why="A seed generator's state is a variable, equal on all replicas; other units are to drop out on each.",
    lasts=Lifetime.TRACE,
    until="`SeedGenerator` asks the replica's context of `tf.distribute`",
)

GRADIENT_LOOKUPS = Patch(
    "tensorflow.python.framework.registry:Registry.lookup",
    why="Gradients are placed on the shard of what they are the gradients of, and compute as it does: each that is looked"
    " up, by `tf.gradients` or a tape, asks its operation. It lasts as long as any graph with shards or such scopes.",
    lasts=Lifetime.OBJECT,
    until="gradients get the attributes of their operations, as `colocate_gradients_with_ops` gives them the device",
)

OWN_GRADIENTS = Patch(
    "tensorflow.python.framework.ops:get_gradient_function",
    why="The same for operations with a gradient of their own, such as calls of functions, which nobody looks up.",
    lasts=Lifetime.OBJECT,
    until="see `GRADIENT_LOOKUPS`",
)

RECORDED_OPERATIONS = Patch(
    "tensorflow.python.eager.execute:record_gradient",
    why="A tape's gradient sees what was recorded of an operation, and not the operation: its shard is recorded too.",
    lasts=Lifetime.OBJECT,
    until="see `GRADIENT_LOOKUPS`",
)

GRAPH_RANGES = Hook(
    f"{_FUNCTIONS}.transform:FUNC_GRAPH_TRANSFORMS",
    why="Ranges that a program does not use are left out of its function: XLA would compile it anew for each of their"
    " lengths. See `replicas/_ranges.py`.",
    lasts=Lifetime.TRACE,
    until="TensorFlow's bridge to XLA does so itself",
)

COMPILED_CALLERS = Hook(
    f"{_FUNCTIONS}.transform:CONCRETE_FUNCTION_CALLBACKS",
    why="A function that holds a program is not compiled for the host: TensorFlow would compile the program with it. It"
    " lasts as long as such a function's graph.",
    lasts=Lifetime.OBJECT,
    until="TensorFlow leaves out what names a device that it does not compile for",
)

FUNCTION_CALLS = Patch(
    f"{_FUNCTIONS}.atomic_function:make_call_op_in_graph",
    why="A loop gets the state of a feed by the function around it alone, be it for a function that it calls: one that had"
    " it twice would lose what one of the two has become.",
    lasts=Lifetime.TRACE,
    until="loops capture what a called function captured by way of the function around",
)

CUSTOM_GRADIENTS = Patch(
    "tensorflow.python.framework.registry:Registry.register",
    why="TensorFlow registers what `tf.custom_gradient` makes in a graph for ever, and with it the graph, the feeds that the"
    " graph captured, and their pumps. Keras's optimizers and several activations do so in each trace. One of a"
    " program goes with the graphs that it was made in.",
    lasts=Lifetime.TRACE,
    until="`custom_gradient._graph_mode_decorator` registers nothing that outlives its graph",
)

CAPTURES = Patch(
    "tensorflow.python.framework.func_graph:FuncGraph.capture",
    why="Where a graph uses a tensor of a part of its program that the host runs, it gets what that is in the program. It"
    " lasts as long as any such part.",
    lasts=Lifetime.OBJECT,
    until="graphs ask the graph of a tensor how they are to capture it",
)

PARTS_OF_HOST = Hook(
    f"{_FUNCTIONS}.transform:CONCRETE_FUNCTION_CALLBACKS",
    why="When a program is traced to its end, the host gets the functions of its parts. It lasts as long as any such part.",
    lasts=Lifetime.OBJECT,
    until="no need to: TensorFlow has this hook for its debugger",
)

ACCUMULATION_LOOPS = Hook(
    f"{_FUNCTIONS}.transform:FUNC_GRAPH_TRANSFORMS",
    why="Optimizers that accumulate have to be in a loop of as many iterations as that takes, which is known when the"
    " outermost function is whole. It lasts as long as the graph of such a function.",
    lasts=Lifetime.OBJECT,
    until="no need to: TensorFlow has this hook for graphs",
)

FUNCTION_ERRORS = Patch(
    f"{_FUNCTIONS}.atomic_function:InterpolateRuntimeError.__exit__",
    why="An error of a program that a function runs begins with the message of the program, and not with where TensorFlow has"
    " the node from, nor with its tags. Other errors are left to TensorFlow. It lasts as long as the graph of such a function.",
    lasts=Lifetime.OBJECT,
    until="TensorFlow puts what it knows of a node behind the message",
)

SESSION_ERRORS = Patch(
    "tensorflow.python.framework.error_interpolation:interpolate_graph",
    why="The same for sessions, as long as a graph lives that has a program.",
    lasts=Lifetime.OBJECT,
    until="see `FUNCTION_ERRORS`",
)

DATASET_ITERATORS = Patch(
    "tensorflow.python.data.ops.dataset_ops:DatasetV2.__iter__",
    "tensorflow.python.data.ops.dataset_ops:DatasetV1Adapter.__iter__",
    why="`iter(dataset)` in a scope feeds programs. TensorFlow 1's datasets hand the question on to the one inside.",
    lasts=Lifetime.SCOPE,
    until="`tf.data` asks the strategy, as `tf.distribute` does for its own datasets",
)

KERAS_MODELS = Patch(
    "keras:Model.__init__",
    why="Models that are made in a scope get the IPU's options and loops.",
    lasts=Lifetime.SCOPE,
    until="Keras asks `keras.distribution` for the trainer",
)

KERAS_CALLS = Patch(
    "keras.src.ops.node:Node.__init__",
    why="Calls of layers in a `PipelineStage` scope note its stage; Keras has no public name for them.",
    lasts=Lifetime.SCOPE,
    until="`keras.name_scope` is on a call",
)

KERAS_LAYERS = Patch(
    "keras:layers.Layer.__init__",
    why="Layers that are made in a `PipelineStage` scope note its stage.",
    lasts=Lifetime.SCOPE,
    until="`keras.name_scope` is on a layer",
)

OLD_LOSS_SCALING = Patch(
    "tensorflow.python.keras.mixed_precision.loss_scale_optimizer:strategy_supports_loss_scaling",
    why="`LossScaleOptimizer` of `tensorflow.python.keras` goes by a list of TensorFlow's own strategies.",
    lasts=Lifetime.INSTALL,
    until="TensorFlow leaves that Keras out",
)

OLD_COMPILE = Patch(
    "keras.src.trainers.trainer:Trainer.compile",
    why="Old scripts give `steps_per_execution` as a tensor, and optimizers of TensorFlow 1. It is the class behind `Model`,"
    " since Keras compiles no model from a file whose class has another `compile` than that one.",
    lasts=Lifetime.INSTALL,
    until="no script is of IPU TensorFlow any more",
)

OLD_OPTIMIZERS = Patch(
    "keras:optimizers.Optimizer.__init__",
    why="Old scripts give optimizers `lr`.",
    lasts=Lifetime.INSTALL,
    until="no script is of IPU TensorFlow any more",
)

OLD_APPLY_GRADIENTS = Patch(
    "keras:optimizers.Optimizer.apply_gradients",
    why="Old scripts give it a `name`, and `experimental_aggregate_gradients`.",
    lasts=Lifetime.INSTALL,
    until="no script is of IPU TensorFlow any more",
)

OLD_INPUTS = Patch(
    "keras:layers.InputLayer.__init__",
    why="Old scripts write `Input(shape=(80))`. It is the class behind `Input`, since they have that function from many"
    " modules.",
    lasts=Lifetime.INSTALL,
    until="no script is of IPU TensorFlow any more",
)

TABLE: tuple[Patch, ...] = tuple(value for value in vars().copy().values() if isinstance(value, Patch))


@contextlib.contextmanager
def in_trace() -> Iterator[None]:
    """A block that traces a program: all that lasts so long is replaced in it."""
    with contextlib.ExitStack() as stack:
        for patch in TABLE:
            if patch.lasts is Lifetime.TRACE and patch.is_known:
                stack.enter_context(patch.applied())
        yield
