"""Attributes of the machine: connection, tiles, the IPU Model, processes."""

from __future__ import annotations

from tensorflow_ipu.config._enums import DeviceConnectionType
from tensorflow_ipu.config._metadata import Effect
from tensorflow_ipu.config._tree import Category, Option, Subcategory

_VERSIONS = ("ipu1", "ipu2", "ipu21")


class DeviceConnection(Category):
    """When the system attaches to its IPUs, and what it may assume of IPUs that it is not attached to."""

    type = Option(
        DeviceConnectionType.ALWAYS,
        "When to attach. `ALWAYS` and `ON_DEMAND` are the same here. With `NEVER` running a program is an error,"
        " and with `PRE_COMPILE` each run returns zeros.",
        effect=Effect.ACTS,
    )
    version = Option(
        "",
        'Generation of the IPUs: `"ipu1"`, `"ipu2"`, `"ipu21"`, or `""` to ask the device. `NEVER` and'
        " `PRE_COMPILE` need it.",
        choices=("", *_VERSIONS),
    )
    enable_remote_buffers = Option(
        False,
        "Programs may keep tensors in host memory (remote buffers). It counts only while the system is not attached.",
        effect=Effect.MODEL,
    )


class IOTiles(Category):
    """Tiles of each IPU that are set apart for streaming data in and out."""

    num_io_tiles = Option(0, "Tiles of each IPU that are kept for input and output.", effect=Effect.MODEL, at_least=0)
    place_ops_on_io_tiles = Option(
        False,
        "Places operations that stream data on those tiles; needs `io_tiles.num_io_tiles` above 0.",
        effect=Effect.MODEL,
    )
    available_memory_proportion = Option(
        0.9,
        "Share of the memory of those tiles, 0.0 to 1.0, for data; the rest is for code. Data that does not fit"
        " stays on the other tiles.",
        effect=Effect.MODEL,
        at_least=0.0,
        at_most=1.0,
    )


class IPUModel(Category):
    """The IPU Model, which stands in for hardware where `TF_POPLAR_FLAGS` has `--use_ipu_model`."""

    compile_ipu_code = Option(True, "Compiles code for the tiles instead of estimating their timing.")
    tiles_per_ipu = Option(
        0, "Tiles of each modelled IPU; 0 for those of its version.", effect=Effect.MODEL, at_least=0
    )
    version = Option(
        "ipu2",
        'Generation of the modelled IPUs: `"ipu1"`, `"ipu2"`, `"ipu21"`, or `""` where the model is not in use.',
        effect=Effect.MODEL,
        choices=("", *_VERSIONS),
    )


class MultiReplicaDistribution(Category):
    """How the replicas of one program are shared out among several processes."""

    process_index = Option(0, "Number of this process, counted from 0.")
    process_count = Option(0, "Processes that run the program together; 0 for this one alone.", at_least=0)


class Experimental(Category):
    """Attributes that may change or go without notice."""

    always_rearrange_copies_on_the_host = Option(
        False,
        "Changes the layout of data on the host: less device memory, more latency.",
    )
    enable_remote_buffer_embedding = Option(
        False, "Embeddings that live on the host use remote buffers.", effect=Effect.MODEL
    )
    enable_prng_stability = Option(
        False,
        "What all replicas compute alike they round alike, so that stochastic rounding does not make their weights"
        " drift apart.",
        effect=Effect.ACTS,
    )
    multi_replica_distribution = Subcategory(MultiReplicaDistribution)
