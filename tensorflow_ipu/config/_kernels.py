"""Passes the configured system to the kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tensorflow_ipu._native import executable_cache
from tensorflow_ipu._native.library import native
from tensorflow_ipu._tensorflow.devices import global_seed

if TYPE_CHECKING:
    from tensorflow_ipu.config._enums import DeviceConnectionType
    from tensorflow_ipu.config._state import DeviceSeed, IpuOptions

__all__ = ["forget_seeds", "global_seed", "set_devices", "set_options", "set_seed"]


def set_devices(ipus: Sequence[int], connections: Sequence[DeviceConnectionType]) -> None:
    array = ctypes.c_int32 * len(ipus)
    native.ipu_configure_devices(array(*ipus), array(*(kind.value for kind in connections)), len(ipus))


def set_options(records: Sequence[IpuOptions], pack_bytes: int) -> None:
    """Sets the folder of executables and the size of messages to other workers.

    The size is `pack_bytes`, or the configured one if `pack_bytes` is 0.
    """
    folders = (record.options["serialization_output_folder"] for record in records)
    executable_cache.configure(next(filter(None, folders), ""))
    sizes = [record.options["optimizations.maximum_cross_replica_sum_buffer_size"] for record in records]
    native.ipu_set_chunk_bytes(pack_bytes or max(sizes, default=0))


def set_seed(ordinal: int, seed: DeviceSeed) -> None:
    """Restarts the random streams of a device."""
    native.ipu_random_reset(ordinal, seed.seed % 2**64, seed.identical_replicas)


def forget_seeds() -> None:
    """Restarts the random streams of all devices from new seeds."""
    native.ipu_random_forget()
