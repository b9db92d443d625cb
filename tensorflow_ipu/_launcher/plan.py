"""Who is who in a cluster: the addresses of all workers, and what the environment of each says."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from tensorflow_ipu import _environment, _worker_environment

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 2222  # Where TensorFlow's own examples have their servers.
_MOST_PORT = 65535

# A name, an IPv4 address, or an IPv6 address in brackets.
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]")


@dataclass(frozen=True)
class LaunchPlan:
    """A cluster.

    Attributes:
      addresses: `host:port` of each worker, in order.
      local_replicas: How many replicas each has; None where the script says.
      ipus_per_replica: How many IPUs each replica has; None where the script says.
      timeout: Seconds after which a worker gives the others up; None for the default.
    """

    addresses: tuple[str, ...]
    local_replicas: int | None = None
    ipus_per_replica: int | None = None
    timeout: float | None = None

    def variables(self, worker: int, count: int = 0) -> dict[str, str]:
        """What the environment of a worker says.

        Args:
          worker: Its number.
          count: How many IPUs the environment offers it so far.
        """
        cluster = {"worker": list(self.addresses)}
        config = {"cluster": cluster, "task": {"type": "worker", "index": worker}}
        found = {"TF_CONFIG": json.dumps(config)}
        if self.local_replicas is not None:
            found[_worker_environment.REPLICAS_VARIABLE] = str(self.local_replicas)
        if self.ipus_per_replica is not None:
            found[_worker_environment.IPUS_PER_REPLICA_VARIABLE] = str(self.ipus_per_replica)
        if self.timeout is not None:
            found[_worker_environment.TIMEOUT_VARIABLE] = f"{self.timeout:g}"
        wanted = (self.local_replicas or 1) * (self.ipus_per_replica or 1)
        if wanted > count:
            found[_environment.COUNT_VARIABLE] = str(wanted)
        return found


def addresses_of(hosts: Sequence[str], instances: int, port: int) -> tuple[str, ...]:
    """The addresses of so many workers, divided evenly among hosts; those of one host have ports one after the other.

    Raises:
      ValueError: A host is malformed or named twice, the workers cannot be divided so, or there are not enough ports.
    """
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise ValueError(
                f"`--hosts` has `{host}`, which is no host; write names or addresses with commas in between, and ports"
                " by `--port`"
            )
        if hosts.count(host) > 1:
            raise ValueError(f"`--hosts` names `{host}` twice; write it once, and raise `--instances`")
    if instances % len(hosts):
        raise ValueError(
            f"`--instances={instances}` cannot be divided evenly among {len(hosts)} hosts; choose a multiple of"
            f" {len(hosts)}"
        )
    of_host = instances // len(hosts)
    if port + of_host - 1 > _MOST_PORT:
        raise ValueError(
            f"`--port={port}` leaves no room for {of_host} ports; choose one up to {_MOST_PORT - of_host + 1}"
        )
    return tuple(f"{host}:{port + index}" for host in hosts for index in range(of_host))


def hold_ports(instances: int, port: int | None) -> list[socket.socket]:
    """Holds ports of the loopback for so many workers, so that no other process is given them.

    The sockets are bound and do not listen: a server that allows the reuse of its address, as gRPC's do, may listen on
    the same port while they are open.

    Args:
      instances: How many.
      port: The first; the others follow it. None has the system choose.

    Raises:
      ValueError: A port is in use, or may not be used.
    """
    held: list[socket.socket] = []
    try:
        for index in range(instances):
            one = socket.socket()
            held.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            wanted = 0 if port is None else port + index
            try:
                one.bind((LOOPBACK, wanted))
            except OSError as exc:
                raise ValueError(
                    f"port {wanted}, for worker {index}, cannot be used: {(exc.strerror or str(exc)).lower()}; choose"
                    f" another `--port`, or leave it out to have free ones chosen"
                ) from exc
    except BaseException:
        for one in held:
            one.close()
        raise
    return held
