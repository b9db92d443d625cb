"""Attributes of the compiler: optimisations and the order of operations."""

from __future__ import annotations

from tensorflow_ipu.config._enums import MergeRemoteBuffersBehaviour, SchedulingAlgorithm
from tensorflow_ipu.config._metadata import Effect
from tensorflow_ipu.config._tree import Category, Option, Subcategory


class Math(Category):
    """Simplification of arithmetic."""

    fast = Option(
        False,
        "Whether expressions may be reordered and rewritten with no regard for rounding, infinities and NaNs.",
    )
    dot_strength = Option(
        True,
        "Whether a dot product in which one side has batch and contracted dimensions alone becomes an elementwise"
        " product.",
    )


class Optimizations(Category):
    """What the compiler may do to a program."""

    math = Subcategory(Math)
    prefetch_data_streams = Option(
        True, "Whether the host fetches the next data while the IPU works on the last.", effect=Effect.MODEL
    )
    combine_embedding_lookups = Option(
        False, "Whether look-ups in the same table become one, which saves time and needs more memory."
    )
    combine_matmuls = Option(
        False, "Whether matrix multiplications that share their weights or their input become one."
    )
    enable_graph_outlining = Option(
        True,
        "Whether like parts of a program share their code, which saves memory and costs the time to bring their inputs"
        " to one place.",
        effect=Effect.MODEL,
    )
    merge_infeed_io_copies = Option(
        True,
        "Whether the copies of the tensors of one infeed element become one larger copy, which saves time and keeps"
        " more memory in use.",
        effect=Effect.MODEL,
    )
    maximum_cross_replica_sum_buffer_size = Option(
        0,
        "Bytes of gradients that may wait to be summed over the replicas in one go; 0 sums each at once. More means"
        " fewer exchanges and larger buffers. In the emulator: the most bytes of a message between workers, in which small"
        " tensors of a collective travel together and of which a large one fills several; 0 is 1 MiB. All workers set it"
        " alike.",
        effect=Effect.ACTS,
        at_least=0,
    )
    maximum_reduce_scatter_buffer_size = Option(
        0,
        "Bytes that may wait for one reduce-scatter; 0 runs each at once.",
        effect=Effect.MODEL,
        at_least=0,
    )
    maximum_inter_ipu_copies_buffer_size = Option(
        0,
        "Bytes that may wait for one copy from IPU to IPU; 0 copies each tensor at once.",
        effect=Effect.MODEL,
        at_least=0,
    )
    maximum_send_recv_cluster_size = Option(
        0, "Bytes that may wait for one exchange with the host; 0 exchanges each tensor at once.", at_least=0
    )
    maximum_reduce_many_buffer_size = Option(
        0, "Bytes that may wait for reductions to be done together; 0 reduces each tensor at once.", at_least=0
    )
    maximum_all_gather_buffer_size = Option(
        0, "Bytes that may wait for one all-gather; 0 gathers each tensor at once.", at_least=0
    )
    minimum_remote_tensor_size = Option(
        128,
        "Bytes that a tensor must have at least to be kept in remote memory.",
        effect=Effect.MODEL,
        at_least=0,
    )
    merge_remote_buffers = Option(
        MergeRemoteBuffersBehaviour.IF_BENEFICIAL,
        "Whether remote buffers of like shape become one, so that computations that differ only in their buffer can"
        " share code.",
    )
    enable_gather_simplifier = Option(True, "Whether embedding look-ups are rewritten more boldly.")
    triangular_solve_expander_block_size = Option(
        0,
        "Rows of the blocks in which triangular systems are solved, each on one tile; 0 lets the compiler choose."
        " Smaller blocks spread the work further and need more control code.",
        at_least=0,
    )
    cholesky_block_size = Option(
        0,
        "Rows of the blocks in which a Cholesky factor is computed, each on one tile; 0 lets the compiler choose."
        " Smaller blocks spread the work further and need more control code.",
        at_least=0,
    )
    enable_fast_math = Option(
        False,
        "The former place of `optimizations.math.fast`; the two are separate values.",
        deprecated="use `optimizations.math.fast` instead, which this attribute does not set",
    )
    enable_dynamic_slice_replacement = Option(
        True, "Whether slices at positions known only at run time are replaced by operations that need less memory."
    )


class Scheduling(Category):
    """The order of the operations of a program."""

    algorithm = Option(SchedulingAlgorithm.CHOOSE_BEST, "How the order is found.")
    maximum_scheduler_lookahead_depth = Option(
        5,
        "How many operations ahead `LOOK_AHEAD` looks; the time that it takes grows steeply with it.",
        at_least=0,
    )
    maximum_scheduler_search_space_size = Option(
        64, "How many orders `LOOK_AHEAD` compares at most in one place.", at_least=0
    )
