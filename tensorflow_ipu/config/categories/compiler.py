"""Attributes of the compiler: optimisations and the order of operations."""

from __future__ import annotations

from tensorflow_ipu.config._enums import MergeRemoteBuffersBehaviour, SchedulingAlgorithm
from tensorflow_ipu.config._metadata import Effect
from tensorflow_ipu.config._tree import Category, Option, Subcategory


class Math(Category):
    """Simplification of arithmetic."""

    fast = Option(
        False,
        "Rewrites expressions with no regard for rounding, infinities and NaNs.",
    )
    dot_strength = Option(
        True,
        "Makes a dot product elementwise if one side has only batch and contracted dimensions.",
    )


class Optimizations(Category):
    """What the compiler may do to a program."""

    math = Subcategory(Math)
    prefetch_data_streams = Option(True, "The host fetches the next data while the IPU works.", effect=Effect.MODEL)
    combine_embedding_lookups = Option(False, "Merges look-ups in the same table: less time, more memory.")
    combine_matmuls = Option(False, "Merges matrix multiplications that share their weights or input.")
    enable_graph_outlining = Option(
        True,
        "Like parts of a program share code: less memory, more time.",
        effect=Effect.MODEL,
    )
    merge_infeed_io_copies = Option(
        True,
        "Copies the tensors of an infeed element together: less time, more memory.",
        effect=Effect.MODEL,
    )
    maximum_cross_replica_sum_buffer_size = Option(
        0,
        "Bytes of gradients that may wait for one sum over replicas. In the emulator: the most bytes of a message"
        " between workers, which holds several small tensors of a collective or a piece of a large one; 0 is 1 MiB."
        " All workers set it alike.",
        effect=Effect.ACTS,
        at_least=0,
    )
    maximum_reduce_scatter_buffer_size = Option(
        0,
        "Bytes that may wait for one reduce-scatter.",
        effect=Effect.MODEL,
        at_least=0,
    )
    maximum_inter_ipu_copies_buffer_size = Option(
        0,
        "Bytes that may wait for one copy between IPUs.",
        effect=Effect.MODEL,
        at_least=0,
    )
    maximum_send_recv_cluster_size = Option(0, "Bytes that may wait for one exchange with the host.", at_least=0)
    maximum_reduce_many_buffer_size = Option(0, "Bytes that may wait for joint reductions.", at_least=0)
    maximum_all_gather_buffer_size = Option(0, "Bytes that may wait for one all-gather.", at_least=0)
    minimum_remote_tensor_size = Option(
        128,
        "Bytes of the smallest tensor in remote memory.",
        effect=Effect.MODEL,
        at_least=0,
    )
    merge_remote_buffers = Option(
        MergeRemoteBuffersBehaviour.IF_BENEFICIAL,
        "Merges remote buffers of like shape, so that computations on them can share code.",
    )
    enable_gather_simplifier = Option(True, "Rewrites embedding look-ups more boldly.")
    triangular_solve_expander_block_size = Option(
        0,
        "Rows of a block of a triangular system, on one tile; 0 lets the compiler choose. Smaller blocks spread the"
        " work and need more control code.",
        at_least=0,
    )
    cholesky_block_size = Option(
        0,
        "Rows of a block of a Cholesky factor, likewise; 0 lets the compiler choose.",
        at_least=0,
    )
    enable_fast_math = Option(
        False,
        "Former place of `optimizations.math.fast`, a separate value.",
        deprecated="use `optimizations.math.fast` instead, which this attribute does not set",
    )
    enable_dynamic_slice_replacement = Option(
        True, "Replaces slices at dynamic positions by operations that need less memory."
    )


class Scheduling(Category):
    """The order of the operations of a program."""

    algorithm = Option(SchedulingAlgorithm.CHOOSE_BEST, "How the order of operations is found.")
    maximum_scheduler_lookahead_depth = Option(
        5,
        "Operations that `LOOK_AHEAD` looks ahead; its time grows steeply with it.",
        at_least=0,
    )
    maximum_scheduler_search_space_size = Option(
        64, "Orders that `LOOK_AHEAD` compares in one place at most.", at_least=0
    )
