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
from tensorflow_ipu.config._files import load, save
from tensorflow_ipu.config._ipu_config import IPUConfig
from tensorflow_ipu.config._metadata import AttributeMetadata
from tensorflow_ipu.config._options import IpuOptions
from tensorflow_ipu.config._system import configure_ipu_system, get_ipu_config, reset_ipu_configuration
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
