"""The names of `popdist` and `popdist.tensorflow`: instances and replicas."""
# ruff: noqa: N802, N803  (The names that scripts call.)

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

from tensorflow_ipu import distributed, hosts
from tensorflow_ipu._base import environment
from tensorflow_ipu._base.checks import as_int, check_bool
from tensorflow_ipu.config import IPUConfig, _state
from tensorflow_ipu.distributed import host_collectives

_T = TypeVar("_T")


def init() -> None:
    """Connects all instances if there are several."""
    if getNumInstances() > 1:
        hosts.join()


def finalizeBackend() -> None:
    """Does nothing. An instance disconnects when its process ends."""


def isBackendInitialized() -> bool:
    """Returns True if the instances are connected or if there is only one."""
    return getNumInstances() == 1 or hosts.joined() is not None


def synchronize() -> None:
    """Waits until all participating instances have called it."""
    distributed.allreduce(0, "SUM", "popdist.synchronize")


def isPopdistEnvSet() -> bool:
    """Returns True if MPI or `python -m tensorflow_ipu run` started this process."""
    return hosts.identity() is not None or environment.local_replicas() is not None


def getInstanceIndex() -> int:
    """Returns the index of this instance, from 0."""
    return host_collectives.own_identity().worker


def getNumInstances() -> int:
    """Returns the number of instances, or 1 if no launcher sets it."""
    return host_collectives.own_identity().workers


def getLocalInstanceIndex() -> int:
    """Returns the index of this instance on its host, from 0."""
    return host_collectives.own_identity().local_worker


def getNumLocalReplicas() -> int:
    """Returns the number of replicas of an instance: `TENSORFLOW_IPU_REPLICAS`, else as many as fit the device, else 1."""
    count = environment.local_replicas()
    if count is not None:
        return count
    return max(1, _state.ipus_of_device(0) // getNumIpusPerReplica()) if _state.records() else 1


def getNumTotalReplicas() -> int:
    """Returns the total number of replicas of all instances."""
    return getNumLocalReplicas() * getNumInstances()


def getReplicaIndexOffset() -> int:
    """Returns the index of this instance's first replica among all replicas."""
    return getNumLocalReplicas() * getInstanceIndex()


def getNumIpusPerReplica() -> int:
    """Returns the number of IPUs of a replica: `TENSORFLOW_IPU_IPUS_PER_REPLICA`, else 1."""
    return environment.ipus_per_replica() or 1


def checkNumIpusPerReplica(ipusPerReplica: int) -> bool:
    """Returns True if a replica has `ipusPerReplica` IPUs."""
    return getNumIpusPerReplica() == ipusPerReplica


def getDeviceId(ipusPerReplica: int = 0) -> int:
    """Returns the id, for `IPUConfig.select_ipus`, of a device for all replicas of this instance."""
    ipus = getNumLocalReplicas() * (ipusPerReplica or getNumIpusPerReplica())
    machine = environment.ipu_count()
    size = ipus.bit_length() - 1
    if ipus != 1 << size or ipus > machine:
        raise ValueError(
            f"a machine of {machine} IPUs has no device of {ipus} IPUs: devices have 1, 2, 4, 8 ... IPUs. Change the"
            f" number of replicas, set `{environment.COUNT_VARIABLE}`, or use `auto_select_ipus`"
        )
    # Ids are ordered by size: in a machine of 4 IPUs, devices 0 to 3 have one IPU, 4 and 5 have two, and 6 has four.
    return sum(machine >> smaller for smaller in range(size))


def execute_on_instances(instances: Collection[int], func: Callable[..., _T], *args: Any, **kwargs: Any) -> _T | None:
    """Calls a function on some instances. Collectives that it calls include only these instances."""
    participants = host_collectives.checked(instances, "instances")
    if getInstanceIndex() not in participants:
        return None
    with host_collectives.among(participants):
        return func(*args, **kwargs)


def set_ipu_config(config: IPUConfig, ipus_per_replica: int | None = None, configure_device: bool = True) -> IPUConfig:
    """Sets `multi_replica_distribution` of a configuration, and `auto_select_ipus` to the IPUs of this instance."""
    if not isinstance(config, IPUConfig):
        raise TypeError(f"`config` must be an `IPUConfig`, but is {config!r}")
    check_bool("configure_device", configure_device)
    ipus = getNumIpusPerReplica() if ipus_per_replica is None else as_int(ipus_per_replica)
    if ipus is None:
        raise TypeError(f"`ipus_per_replica` must be a number, but is {ipus_per_replica!r}")
    if ipus < 1:
        raise ValueError(f"`ipus_per_replica` must be 1 or more, but is {ipus_per_replica!r}")
    variable = environment.ipus_per_replica()
    if variable not in (None, ipus):
        raise ValueError(
            f"`ipus_per_replica` is {ipus}, but `{environment.IPUS_PER_REPLICA_VARIABLE}` is {variable}; run with"
            f" `--ipus-per-replica {ipus}`"
        )
    processes = config.experimental.multi_replica_distribution
    processes.process_count, processes.process_index = getNumInstances(), getInstanceIndex()
    if configure_device:
        config.auto_select_ipus = getNumLocalReplicas() * ipus
    return config
