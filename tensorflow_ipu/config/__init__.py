"""The configuration of the emulated IPU system."""

from tensorflow_ipu.config._enums import (
    DeviceConnectionType,
    ExecutionProfileType,
    MergeRemoteBuffersBehaviour,
    SchedulingAlgorithm,
    SelectionOrder,
    StochasticRoundingBehaviour,
    SyntheticDataCategory,
)
from tensorflow_ipu.config._ipu_config import (
    IPUConfig,
    configure_ipu_system,
    get_ipu_config,
    load,
    reset_ipu_configuration,
    save,
)
from tensorflow_ipu.config._state import IpuOptions
from tensorflow_ipu.config._tree import AttributeMetadata
from tensorflow_ipu.config.utils import (
    get_num_of_ipus_in_device,
    move_variable_initialization_to_cpu,
    reset_ipu_seed,
    running_on_ipu_model,
    use_synthetic_data_for,
)

__all__ = [
    "AttributeMetadata",
    "DeviceConnectionType",
    "ExecutionProfileType",
    "IPUConfig",
    "IpuOptions",
    "MergeRemoteBuffersBehaviour",
    "SchedulingAlgorithm",
    "SelectionOrder",
    "StochasticRoundingBehaviour",
    "SyntheticDataCategory",
    "configure_ipu_system",
    "get_ipu_config",
    "get_num_of_ipus_in_device",
    "load",
    "move_variable_initialization_to_cpu",
    "reset_ipu_configuration",
    "reset_ipu_seed",
    "running_on_ipu_model",
    "save",
    "use_synthetic_data_for",
]
