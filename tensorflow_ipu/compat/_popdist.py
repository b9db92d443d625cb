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
    """Joins all instances, once, if there are several."""
    if getNumInstances() > 1:
        hosts.join()


def finalizeBackend() -> None:
    """Does nothing: the end of the process ends its part."""


def isBackendInitialized() -> bool:
    """Returns True if the instances have been joined; with one instance, there is nothing to join."""
    return getNumInstances() == 1 or hosts.joined() is not None


def synchronize() -> None:
    """Waits for all instances that take part."""
    distributed.allreduce(0, "SUM", "popdist.synchronize")


def isPopdistEnvSet() -> bool:
    """Returns True if MPI or `python -m tensorflow_ipu run` has started this process."""
    return hosts.identity() is not None or environment.local_replicas() is not None


def getInstanceIndex() -> int:
    """Returns the number of this instance, from 0."""
    return host_collectives.own_identity().worker


def getNumInstances() -> int:
    """Returns the number of instances; 1 if no launcher sets it."""
    return host_collectives.own_identity().workers


def getLocalInstanceIndex() -> int:
    """Returns the number of this instance among those of its host, from 0."""
    return host_collectives.own_identity().local_worker


def getNumLocalReplicas() -> int:
    """Returns the replicas of an instance by `TENSORFLOW_IPU_REPLICAS`, else by the configured device, else 1."""
    count = environment.local_replicas()
    if count is not None:
        return count
    return max(1, _state.ipus_of_device(0) // getNumIpusPerReplica()) if _state.records() else 1


def getNumTotalReplicas() -> int:
    """Returns the number of replicas of all instances."""
    return getNumLocalReplicas() * getNumInstances()


def getReplicaIndexOffset() -> int:
    """Returns the number of this instance's first replica among all."""
    return getNumLocalReplicas() * getInstanceIndex()


def getNumIpusPerReplica() -> int:
    """Returns the IPUs of a replica by `TENSORFLOW_IPU_IPUS_PER_REPLICA`, else 1."""
    return environment.ipus_per_replica() or 1


def checkNumIpusPerReplica(ipusPerReplica: int) -> bool:
    """Returns True if a replica has so many IPUs."""
    return getNumIpusPerReplica() == ipusPerReplica


def getDeviceId(ipusPerReplica: int = 0) -> int:
    """Returns the id, for `IPUConfig.select_ipus`, of a device with room for all replicas of this instance."""
    wanted = getNumLocalReplicas() * (ipusPerReplica or getNumIpusPerReplica())
    machine = environment.ipu_count()
    size = wanted.bit_length() - 1
    if wanted != 1 << size or wanted > machine:
        raise ValueError(
            f"no id names a device of {wanted} IPUs in a machine of {machine}; ids name 1, 2, 4, 8 ... of them. Choose such a"
            f" number of replicas, set `{environment.COUNT_VARIABLE}`, or use `auto_select_ipus`"
        )
    return sum(machine >> smaller for smaller in range(size))  # After the ids of all smaller devices.


def execute_on_instances(instances: Collection[int], func: Callable[..., _T], *args: Any, **kwargs: Any) -> _T | None:
    """Calls a function on some instances, among which it exchanges by `ipu.distributed` and `horovod`."""
    chosen = host_collectives.checked(instances, "instances")
    if getInstanceIndex() not in chosen:
        return None
    with host_collectives.among(chosen):
        return func(*args, **kwargs)


def set_ipu_config(config: IPUConfig, ipus_per_replica: int | None = None, configure_device: bool = True) -> IPUConfig:
    """Sets a configuration's `multi_replica_distribution`, and its `auto_select_ipus` for all replicas here."""
    if not isinstance(config, IPUConfig):
        raise TypeError(f"`config` must be an `IPUConfig`, but is {config!r}")
    check_bool("configure_device", configure_device)
    ipus = getNumIpusPerReplica() if ipus_per_replica is None else as_int(ipus_per_replica)
    if ipus is None:
        raise TypeError(f"`ipus_per_replica` must be a number, but is {ipus_per_replica!r}")
    if ipus < 1:
        raise ValueError(f"`ipus_per_replica` must be 1 or more, but is {ipus_per_replica!r}")
    wanted = environment.ipus_per_replica()
    if wanted not in (None, ipus):
        raise ValueError(
            f"`ipus_per_replica` is {ipus}, and `{environment.IPUS_PER_REPLICA_VARIABLE}` says {wanted}: run with"
            f" `--ipus-per-replica {ipus}`"
        )
    processes = config.experimental.multi_replica_distribution
    processes.process_count, processes.process_index = getNumInstances(), getInstanceIndex()
    if configure_device:
        config.auto_select_ipus = getNumLocalReplicas() * ipus
    return config
