"""The public names, held against a list: a name that comes or goes does so on purpose."""

import importlib

import pytest

PUBLIC = {
    "tensorflow_ipu": """
        IPUConfig IPUInfeedQueue IPUOutfeedMode IPUOutfeedQueue IPUStrategy IPUStrategyV1 compat compiler config errors
        feeds loops ops optimizers pipelining scopes
    """,
    "tensorflow_ipu.config": """
        AttributeMetadata DeviceConnectionType ExecutionProfileType IPUConfig IpuOptions MergeRemoteBuffersBehaviour
        SchedulingAlgorithm SelectionOrder StochasticRoundingBehaviour SyntheticDataCategory configure_ipu_system
        get_ipu_config get_num_of_ipus_in_device move_variable_initialization_to_cpu reset_ipu_configuration
        reset_ipu_seed running_on_ipu_model use_synthetic_data_for
    """,
    "tensorflow_ipu.errors": "DeviceLimitError IpuError LibraryError NotConfiguredError",
    "tensorflow_ipu.feeds": """
        IPUInfeedQueue IPUIterator IPUOutfeedMode IPUOutfeedQueue IPUOutfeedQueueIterator IPUOwnedIterator
        ScopedIPUOutfeedQueue dataset_benchmark dataset_extractor export_dataset_to_file export_inputs_to_file
        export_variables get_variable_handles import_variables infeed_benchmark set_wait_limit shut_down
    """,
    "tensorflow_ipu.loops": "repeat while_loop",
    "tensorflow_ipu.ops": """
        ReplicaGroups all_to_all_op cross_replica_ops reduce_scatter_op replication_ops within_replica_ops
    """,
    "tensorflow_ipu.optimizers": "GradientAccumulationReductionMethod IpuOptimizer MapGradientOptimizer",
    "tensorflow_ipu.strategy": "IPUStrategy IPUStrategyV1",
}


@pytest.mark.parametrize("package", PUBLIC)
def test_public_names_are_those_of_the_list(package):
    assert list(importlib.import_module(package).__all__) == sorted(PUBLIC[package].split())


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_is_there(package):
    module = importlib.import_module(package)
    for name in module.__all__:
        assert getattr(module, name) is not None
