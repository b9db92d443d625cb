"""The categories of configuration attributes: for the compiler, the libraries, the machine and arithmetic."""

from __future__ import annotations

from typing import Any

from tensorflow_ipu._base import machine_names
from tensorflow_ipu.config._enums import (
    DeviceConnectionType,
    MergeRemoteBuffersBehaviour,
    SchedulingAlgorithm,
    StochasticRoundingBehaviour,
)
from tensorflow_ipu.config._tree import Category, Effect, Option, Subcategory

_ACTS, _MODEL = Effect.ACTS, Effect.MODEL


class Math(Category):
    """Simplification of arithmetic."""

    fast = Option(False, "Rewrites expressions with no regard for rounding, infinities and NaNs.")
    dot_strength = Option(True, "Makes a dot product elementwise if one side has only batch and contracted dimensions.")


class Optimizations(Category):
    """Optimizations of programs by the compiler."""

    math = Subcategory(Math)
    prefetch_data_streams = Option(True, "The host fetches the next data while the IPU works.", effect=_MODEL)
    combine_embedding_lookups = Option(False, "Merges look-ups in the same table: less time, more memory.")
    combine_matmuls = Option(False, "Merges matrix multiplications that share their weights or input.")
    enable_graph_outlining = Option(True, "Equal parts of a program share code: less memory, more time.", effect=_MODEL)
    merge_infeed_io_copies = Option(
        True, "Copies the tensors of an infeed element together: less time, more memory.", effect=_MODEL
    )
    maximum_cross_replica_sum_buffer_size = Option(
        0,
        "Bytes of gradients that may wait for one sum over replicas. In the emulator: the largest size in bytes of a"
        " message between workers; 0 is 1 MiB. A message contains several small tensors of a collective, or a part of a"
        " large one. All workers must set the same value.",
        effect=_ACTS,
        at_least=0,
    )
    maximum_reduce_scatter_buffer_size = Option(
        0, "Bytes that may wait for one reduce-scatter.", effect=_MODEL, at_least=0
    )
    maximum_inter_ipu_copies_buffer_size = Option(
        0, "Bytes that may wait for one copy between IPUs.", effect=_MODEL, at_least=0
    )
    maximum_send_recv_cluster_size = Option(0, "Bytes that may wait for one transfer from or to the host.", at_least=0)
    maximum_reduce_many_buffer_size = Option(0, "Bytes that may wait for joint reductions.", at_least=0)
    maximum_all_gather_buffer_size = Option(0, "Bytes that may wait for one all-gather.", at_least=0)
    minimum_remote_tensor_size = Option(
        128, "Bytes of the smallest tensor in remote memory.", effect=_MODEL, at_least=0
    )
    merge_remote_buffers = Option(
        MergeRemoteBuffersBehaviour.IF_BENEFICIAL,
        "Merges remote buffers of equal shape, so that computations on them can share code.",
    )
    enable_gather_simplifier = Option(True, "Rewrites embedding look-ups more aggressively.")
    triangular_solve_expander_block_size = Option(
        0,
        "Rows of a block of a triangular system, on one tile; 0 lets the compiler choose. Smaller blocks spread the"
        " work and need more control code.",
        at_least=0,
    )
    cholesky_block_size = Option(
        0, "Rows of a block of a Cholesky factor, on one tile; 0 lets the compiler choose.", at_least=0
    )
    enable_fast_math = Option(
        False,
        "Former name of `optimizations.math.fast`. Its value is separate.",
        deprecated="use `optimizations.math.fast` instead, which this attribute does not set",
    )
    enable_dynamic_slice_replacement = Option(
        True, "Replaces slices at dynamic positions by operations that need less memory."
    )


class Scheduling(Category):
    """The order of the operations of a program."""

    algorithm = Option(SchedulingAlgorithm.CHOOSE_BEST, "Algorithm that orders the operations.")
    maximum_scheduler_lookahead_depth = Option(
        5, "Number of operations that `LOOK_AHEAD` looks ahead; its time grows steeply with this number.", at_least=0
    )
    maximum_scheduler_search_space_size = Option(
        64, "Maximum number of orders that `LOOK_AHEAD` compares in one place.", at_least=0
    )


# The default of `poplar_options`. Its contents are checked when the system is configured: keys and values must be text.
_NONE: dict[str, Any] = {}


class Convolutions(Category):
    """Convolutions."""

    poplar_options = Option(
        _NONE,
        "Options of all convolutions, as text. `partialsType`, `half` or `float`, is the type of partial sums of"
        " float16; results depend on no other option. `availableMemoryProportion` is the share of an IPU's memory, 0 to"
        " 1, for intermediate values.",
        effect=_ACTS,
    )


class Matmuls(Category):
    """Matrix multiplications."""

    clear_pass_type = Option(
        False,
        "Does not inform the matrix library whether a multiplication belongs to the forward or the backward pass. This can"
        " save memory.",
    )
    poplar_options = Option(
        _NONE, "The same options as `convolutions.poplar_options`, for all matrix multiplications.", effect=_ACTS
    )


class Pooling(Category):
    """Pooling."""

    poplar_options = Option(_NONE, "Options of all pooling operations, as text.")


class Slices(Category):
    """Slices and embedding look-ups."""

    poplar_options = Option(
        _NONE,
        "Options of all slices, look-ups and updates, as text. `availableMemoryProportion` is the share of an IPU's"
        " memory, 0 to 1, for intermediate values.",
    )


_VERSIONS = ("", *machine_names.NAMES)


def _version(value: str) -> str:
    return (machine_names.known_name(value) if isinstance(value, str) and value else None) or value


class DeviceConnection(Category):
    """The time at which the system attaches to its IPUs, and properties that it assumes of IPUs before."""

    type = Option(
        DeviceConnectionType.ALWAYS,
        "When the system attaches to its IPUs. `ALWAYS` and `ON_DEMAND` are the same here. With `NEVER`, running a program"
        " is an error. With `PRE_COMPILE`, each run returns zeros.",
        effect=_ACTS,
    )
    version = Option(
        "",
        'Generation of the IPUs: `"ipu1"`, `"ipu2"`, `"ipu21"`, a machine\'s name, or `""` to query the device. `NEVER`'
        " and `PRE_COMPILE` require it.",
        canonical=_version,
        choices=_VERSIONS,
    )
    enable_remote_buffers = Option(
        False,
        "Programs may keep tensors in host memory (remote buffers). Used only while the system is not attached.",
        effect=_MODEL,
    )


class IOTiles(Category):
    """Tiles of each IPU that are reserved for streaming data in and out."""

    num_io_tiles = Option(
        0, "Number of tiles of each IPU that are reserved for input and output.", effect=_MODEL, at_least=0
    )
    place_ops_on_io_tiles = Option(
        False,
        "Places operations that stream data on those tiles; needs `io_tiles.num_io_tiles` above 0.",
        effect=_MODEL,
    )
    available_memory_proportion = Option(
        0.9,
        "Share of the memory of those tiles, 0.0 to 1.0, for data; the rest is for code. Data that does not fit"
        " stays on the other tiles.",
        effect=_MODEL,
        at_least=0.0,
        at_most=1.0,
    )


class IPUModel(Category):
    """The IPU Model, which replaces hardware if `TF_POPLAR_FLAGS` has `--use_ipu_model`."""

    compile_ipu_code = Option(True, "Compiles code for the tiles instead of estimating their timing.")
    tiles_per_ipu = Option(
        0, "Number of tiles of each modelled IPU; 0 for the number of its version.", effect=_MODEL, at_least=0
    )
    version = Option(
        "ipu2",
        'Generation of the modelled IPUs: `"ipu1"`, `"ipu2"`, `"ipu21"`, a machine\'s name such as `"IPU-POD16"`, or `""`'
        " if the model is not used.",
        effect=_MODEL,
        canonical=_version,
        choices=_VERSIONS,
    )


class MultiReplicaDistribution(Category):
    """The distribution of a program's replicas among several processes."""

    process_index = Option(0, "Number of this process, counted from 0.")
    process_count = Option(0, "Number of processes that run the program together; 0 for a single process.", at_least=0)


class Experimental(Category):
    """Attributes that may change or go without notice."""

    always_rearrange_copies_on_the_host = Option(
        False, "Changes the layout of data on the host: less device memory, more latency."
    )
    enable_remote_buffer_embedding = Option(False, "Embeddings on the host use remote buffers.", effect=_MODEL)
    enable_prng_stability = Option(
        False,
        "A value that is equal on all replicas is rounded to the same result on all of them. So stochastic rounding does"
        " not make their weights diverge.",
        effect=_ACTS,
    )
    multi_replica_distribution = Subcategory(MultiReplicaDistribution)


class FloatingPointBehaviour(Category):
    """Rounding and exceptions of floating-point arithmetic on the device."""

    inv = Option(
        False, "An operation whose result is NaN without a NaN operand, such as 0/0, stops the program.", effect=_ACTS
    )
    div0 = Option(False, "A division by zero stops the program.", effect=_ACTS)
    oflo = Option(False, "A result above the largest number of float16, 65504, stops the program.", effect=_ACTS)
    esr = Option(
        StochasticRoundingBehaviour.OFF,
        "Selects the float16 results that are rounded stochastically.",
        effect=_ACTS,
    )
    nanoo = Option(
        False,
        "The result of a float16 overflow is NaN. Otherwise, it is the largest number of the type if another attribute"
        " of this category is set, and infinity if none is.",
        effect=_ACTS,
    )
    set_all = Option(
        False,
        "Switches on `inv`, `div0`, `oflo` and `nanoo`, and sets `esr` to `StochasticRoundingBehaviour.ON`."
        " `get_ipu_config` returns these values; this object keeps the assigned ones.",
        effect=_ACTS,
    )


class NormsExperimental(Category):
    """Attributes of normalisation that may change or go without notice."""

    distributed_batch_norm_replica_group_size = Option(
        1,
        "Number of consecutive replicas that share mean, variance and sums of gradients of a batch normalisation in"
        " training. This applies to TensorFlow's fused operation, and to Keras's layer with inputs of four dimensions."
        " The number must divide the number of IPUs of each device with several IPUs. Not supported together with I/O"
        " tiles.",
        at_least=1,
        effect=_ACTS,
    )


class Norms(Category):
    """Batch, group, layer and instance normalisation."""

    use_stable_statistics = Option(
        False,
        "Subtracts the mean before it computes the variance, in the IPU's own group, layer and instance"
        " normalisation: slower, more precise.",
        effect=_ACTS,
    )
    experimental = Subcategory(NormsExperimental)
