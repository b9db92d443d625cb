"""The attributes that exist are those of the contract, typed and documented."""

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

ATTRIBUTES = [
    ("allow_recompute", "bool", False),
    ("selection_order", "SelectionOrder", SelectionOrder.AUTO),
    ("serialization_output_folder", "str", ""),
    ("compilation_poplar_options", "dict", {}),
    ("gcl_poplar_options", "dict", {}),
    ("auto_select_ipus", "int | list[int] | tuple[int, ...]", []),
    ("select_ipus", "int | list[int] | tuple[int, ...]", []),
    ("convolutions.poplar_options", "dict", {}),
    ("device_connection.type", "DeviceConnectionType", DeviceConnectionType.ALWAYS),
    ("device_connection.version", "str", ""),
    ("device_connection.enable_remote_buffers", "bool", False),
    ("slices.poplar_options", "dict", {}),
    ("experimental.always_rearrange_copies_on_the_host", "bool", False),
    ("experimental.enable_remote_buffer_embedding", "bool", False),
    ("experimental.enable_prng_stability", "bool", False),
    ("experimental.multi_replica_distribution.process_index", "int", 0),
    ("experimental.multi_replica_distribution.process_count", "int", 0),
    ("floating_point_behaviour.inv", "bool", False),
    ("floating_point_behaviour.div0", "bool", False),
    ("floating_point_behaviour.oflo", "bool", False),
    ("floating_point_behaviour.esr", "StochasticRoundingBehaviour", StochasticRoundingBehaviour.OFF),
    ("floating_point_behaviour.nanoo", "bool", False),
    ("floating_point_behaviour.set_all", "bool", False),
    ("io_tiles.num_io_tiles", "int", 0),
    ("io_tiles.place_ops_on_io_tiles", "bool", False),
    ("io_tiles.available_memory_proportion", "float", 0.9),
    ("ipu_model.compile_ipu_code", "bool", True),
    ("ipu_model.tiles_per_ipu", "int", 0),
    ("ipu_model.version", "str", "ipu2"),
    ("matmuls.clear_pass_type", "bool", False),
    ("matmuls.poplar_options", "dict", {}),
    ("norms.use_stable_statistics", "bool", False),
    ("norms.experimental.distributed_batch_norm_replica_group_size", "int", 1),
    ("optimizations.math.fast", "bool", False),
    ("optimizations.math.dot_strength", "bool", True),
    ("optimizations.prefetch_data_streams", "bool", True),
    ("optimizations.combine_embedding_lookups", "bool", False),
    ("optimizations.combine_matmuls", "bool", False),
    ("optimizations.enable_graph_outlining", "bool", True),
    ("optimizations.merge_infeed_io_copies", "bool", True),
    ("optimizations.maximum_cross_replica_sum_buffer_size", "int", 0),
    ("optimizations.maximum_reduce_scatter_buffer_size", "int", 0),
    ("optimizations.maximum_inter_ipu_copies_buffer_size", "int", 0),
    ("optimizations.maximum_send_recv_cluster_size", "int", 0),
    ("optimizations.maximum_reduce_many_buffer_size", "int", 0),
    ("optimizations.maximum_all_gather_buffer_size", "int", 0),
    ("optimizations.minimum_remote_tensor_size", "int", 128),
    ("optimizations.merge_remote_buffers", "MergeRemoteBuffersBehaviour", MergeRemoteBuffersBehaviour.IF_BENEFICIAL),
    ("optimizations.enable_gather_simplifier", "bool", True),
    ("optimizations.triangular_solve_expander_block_size", "int", 0),
    ("optimizations.cholesky_block_size", "int", 0),
    ("optimizations.enable_fast_math", "bool", False),
    ("optimizations.enable_dynamic_slice_replacement", "bool", True),
    ("pooling.poplar_options", "dict", {}),
    ("scheduling.algorithm", "SchedulingAlgorithm", SchedulingAlgorithm.CHOOSE_BEST),
    ("scheduling.maximum_scheduler_lookahead_depth", "int", 5),
    ("scheduling.maximum_scheduler_search_space_size", "int", 64),
]


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
    assert set(IPUConfig().to_dict()) == {name for name, _, _ in ATTRIBUTES}
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


@pytest.mark.parametrize(("name", "type_name", "default"), ATTRIBUTES)
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
