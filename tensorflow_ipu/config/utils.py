"""Helpers to query the configured system and the environment, and to set seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsIndex

from tensorflow_ipu._base import environment
from tensorflow_ipu._base.checks import as_int, check_bool, check_instance
from tensorflow_ipu.config import _state
from tensorflow_ipu.config._checks import check_host_device
from tensorflow_ipu.config._enums import SyntheticDataCategory
from tensorflow_ipu.config._state import device_ordinal

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = [
    "get_num_of_ipus_in_device",
    "move_variable_initialization_to_cpu",
    "reset_ipu_seed",
    "running_on_ipu_model",
    "use_synthetic_data_for",
]


def get_num_of_ipus_in_device(ipu_device: str, device: str = "cpu") -> int:
    """Returns the number of IPUs of a TensorFlow device; 1 if nothing is configured.

    Args:
      ipu_device: The IPU device, such as `"/device:IPU:0"`.
      device: The host device, which is ignored.

    Raises:
      TypeError: An argument is no string.
      ValueError: `ipu_device` names no IPU device.
      NotConfiguredError: There is no such device.
    """
    check_host_device(device)
    ordinal = device_ordinal(ipu_device, "ipu_device")
    if not _state.records() and ordinal < environment.registered_devices():
        return 1
    return _state.ipus_of_device(ordinal)


def running_on_ipu_model() -> bool:
    """Returns True if `TF_POPLAR_FLAGS` has `--use_ipu_model`. Raises `ValueError` if the variable is malformed."""
    return environment.poplar_flags().use_ipu_model


def reset_ipu_seed(
    seed: SupportsIndex,
    device: str = "/device:IPU:0",
    cpu_device: str = "cpu",
    experimental_identical_replicas: bool = False,
) -> None:
    """Restarts the random stream of a device from `seed`, and calls `tf.random.set_seed(seed)` for the host.

    The seed applies to `tf.random.uniform`, `tf.random.normal`, `tf.nn.dropout` and similar operations in programs.
    `tf.random.Generator` and Keras's `SeedGenerator` have separate seeds.

    Args:
      seed: A signed or unsigned integer of 64 bits.
      device: The IPU device, such as `"/device:IPU:0"`.
      cpu_device: The host device, which is ignored.
      experimental_identical_replicas: If True, all replicas draw the same random values. Otherwise, each replica has a
        different random stream.

    Raises:
      TypeError: An argument has the wrong type.
      ValueError: `seed` does not fit into 64 bits, or `device` names no IPU device.
      NotConfiguredError: There is no such device.
    """
    number = as_int(seed)
    if number is None:
        raise TypeError(f"`seed` must be a whole number, and `{seed!r}` is not")
    if not -(2**63) <= number < 2**64:
        raise ValueError(f"`seed={number}` does not fit into 64 bits; choose it from -2**63 to 2**64 - 1")
    check_host_device(cpu_device)
    check_bool("experimental_identical_replicas", experimental_identical_replicas)
    ordinal = device_ordinal(device)
    _state.set_device_seed(ordinal, _state.DeviceSeed(number, experimental_identical_replicas))

    import tensorflow as tf

    # TensorFlow keeps the seed as a signed number.
    tf.random.set_seed(number - 2**64 if number >= 2**63 else number)


def move_variable_initialization_to_cpu(graph: tf.Graph | None = None) -> None:
    """Does nothing, since the host computes initial values anyway.

    Raises `TypeError` unless `graph` is a graph or None.
    """
    if graph is None:
        return

    import tensorflow as tf

    check_instance("graph", graph, tf.Graph, "a `tf.Graph` or None")


def use_synthetic_data_for(synthetic_data_category: SyntheticDataCategory) -> bool:
    """Returns True if `TF_POPLAR_FLAGS` switches off the transfer of a category of data between host and device.

    Raises:
      TypeError: `synthetic_data_category` is no `SyntheticDataCategory`.
      ValueError: The variable is malformed.
    """
    check_instance(
        "synthetic_data_category", synthetic_data_category, SyntheticDataCategory, "a `SyntheticDataCategory`"
    )
    return environment.poplar_flags().synthetic(synthetic_data_category.name)
