"""The attributes and enumerations are those of IPU TensorFlow, with their types, defaults and documentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tensorflow_ipu.config import (
    DeviceConnectionType,
    ExecutionProfileType,
    IPUConfig,
    MergeRemoteBuffersBehaviour,
    SchedulingAlgorithm,
    SelectionOrder,
    StochasticRoundingBehaviour,
    SyntheticDataCategory,
)
from tensorflow_ipu.config._tree import Effect, show

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"

# The type, the default and the names of attributes.
ATTRIBUTES = [
    ("bool", False, """
        allow_recompute device_connection.enable_remote_buffers
        experimental.always_rearrange_copies_on_the_host experimental.enable_remote_buffer_embedding
        experimental.enable_prng_stability floating_point_behaviour.inv floating_point_behaviour.div0
        floating_point_behaviour.oflo floating_point_behaviour.nanoo floating_point_behaviour.set_all
        io_tiles.place_ops_on_io_tiles matmuls.clear_pass_type norms.use_stable_statistics
        optimizations.math.fast optimizations.combine_embedding_lookups optimizations.combine_matmuls
        optimizations.enable_fast_math
    """),
    ("SelectionOrder", SelectionOrder.AUTO, "selection_order"),
    ("str", '', "serialization_output_folder device_connection.version"),
    ("dict", {}, """
        compilation_poplar_options gcl_poplar_options convolutions.poplar_options slices.poplar_options
        matmuls.poplar_options pooling.poplar_options
    """),
    ("int | list[int] | tuple[int, ...]", [], "auto_select_ipus select_ipus"),
    ("DeviceConnectionType", DeviceConnectionType.ALWAYS, "device_connection.type"),
    ("int", 0, """
        experimental.multi_replica_distribution.process_index
        experimental.multi_replica_distribution.process_count io_tiles.num_io_tiles ipu_model.tiles_per_ipu
        optimizations.maximum_cross_replica_sum_buffer_size optimizations.maximum_reduce_scatter_buffer_size
        optimizations.maximum_inter_ipu_copies_buffer_size optimizations.maximum_send_recv_cluster_size
        optimizations.maximum_reduce_many_buffer_size optimizations.maximum_all_gather_buffer_size
        optimizations.triangular_solve_expander_block_size optimizations.cholesky_block_size
    """),
    ("StochasticRoundingBehaviour", StochasticRoundingBehaviour.OFF, "floating_point_behaviour.esr"),
    ("float", 0.9, "io_tiles.available_memory_proportion"),
    ("bool", True, """
        ipu_model.compile_ipu_code optimizations.math.dot_strength optimizations.prefetch_data_streams
        optimizations.enable_graph_outlining optimizations.merge_infeed_io_copies
        optimizations.enable_gather_simplifier optimizations.enable_dynamic_slice_replacement
    """),
    ("str", 'ipu2', "ipu_model.version"),
    ("int", 1, "norms.experimental.distributed_batch_norm_replica_group_size"),
    ("int", 128, "optimizations.minimum_remote_tensor_size"),
    ("MergeRemoteBuffersBehaviour", MergeRemoteBuffersBehaviour.IF_BENEFICIAL, """
        optimizations.merge_remote_buffers
    """),
    ("SchedulingAlgorithm", SchedulingAlgorithm.CHOOSE_BEST, "scheduling.algorithm"),
    ("int", 5, "scheduling.maximum_scheduler_lookahead_depth"),
    ("int", 64, "scheduling.maximum_scheduler_search_space_size"),
]  # fmt: skip


ENUMS = {
    SelectionOrder: "AUTO ZIGZAG SNAKE HOOF",
    ExecutionProfileType: "NO_PROFILE DEVICE_PROFILE IPU_PROFILE TILE_PROFILE",
    DeviceConnectionType: "ALWAYS ON_DEMAND NEVER PRE_COMPILE",
    MergeRemoteBuffersBehaviour: "NO_MERGING MERGE IF_BENEFICIAL",
    SchedulingAlgorithm: "CHOOSE_BEST CLUSTERING POST_ORDER LOOK_AHEAD SHORTEST_PATH",
    StochasticRoundingBehaviour: "OFF ON REPLICA_IDENTICAL_ONLY",
    SyntheticDataCategory: "Seed Infeed Outfeed HostEmbedding Parameters",
}


def test_the_attributes_and_enums_are_those_of_the_contract():
    assert set(IPUConfig().to_dict()) == {name for _, _, names in ATTRIBUTES for name in names.split()}
    for enum, names in ENUMS.items():
        assert {name: member.value for name, member in enum.__members__.items()} == {
            name: value for value, name in enumerate(names.split())
        }
    assert StochasticRoundingBehaviour.from_bool(True) is StochasticRoundingBehaviour.ON
    assert StochasticRoundingBehaviour.from_bool(False) is StochasticRoundingBehaviour.OFF
    effects = {
        "auto_select_ipus": Effect.ACTS,
        "io_tiles.num_io_tiles": Effect.MODEL,
        "selection_order": Effect.RECORDED,
    }
    for name, effect in effects.items():
        assert IPUConfig().get_attribute_metadata(name).effect is effect


HEADINGS = {
    Effect.ACTS: "### Attributes with an effect",
    Effect.MODEL: "### Attributes for predictions of the machine",
    Effect.RECORDED: "### Attributes without an effect, checked and recorded",
}


@pytest.mark.parametrize(
    ("name", "type_name", "default"), [(name, *values) for *values, names in ATTRIBUTES for name in names.split()]
)
def test_attribute_has_type_default_and_documentation(name, type_name, default):
    config = IPUConfig()
    metadata = config.get_attribute_metadata(name)
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    assert (metadata.name, metadata.type, metadata.default) == (name, type_name, default)
    assert value == default
    assert type(value) is type(default)
    assert metadata.depth == len(name.split("."))
    assert isinstance(metadata.effect, Effect)
    assert metadata.doc == metadata.__doc__
    assert metadata.doc.endswith(metadata.effect.value)
    meaning = metadata.doc.removesuffix(metadata.effect.value).strip()
    assert len(meaning) > 20
    section = PAGE.read_text(encoding="utf-8").partition(f"{HEADINGS[metadata.effect]}\n")[2].partition("\n#")[0]
    assert f"* `{name}` (`{show(default)}`): {meaning}" in section.splitlines()
