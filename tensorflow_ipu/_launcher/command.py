"""The command `python -m tensorflow_ipu run`."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorflow_ipu import _environment, _worker_environment
from tensorflow_ipu._launcher import children

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
        """What the environment of a worker says."""
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
    """The addresses of so many workers, divided evenly among hosts; those of one host have ports one after the other."""
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


_USAGE = """\
python -m tensorflow_ipu run --instances N [--replicas R] [OPTION ...] SCRIPT [ARGUMENT ...]
       python -m tensorflow_ipu run --hosts A,B [--instances N] [OPTION ...] SCRIPT [ARGUMENT ...]
       python -m tensorflow_ipu run SCRIPT [ARGUMENT ...]"""

_DESCRIPTION = """\
Runs a script in several processes of this machine, which form a cluster: each is one
worker of TensorFlow's, by the variable TF_CONFIG. Each line of their output has the
number of its worker in front. When one fails, the others are ended: the status is that
of the first to fail, and its last lines are shown once more. Ctrl-C is handed on to all.

With `--hosts` nothing is started: the command that each host has to run is printed.

Without `--instances` and `--hosts`, the script runs as by `python -m tensorflow_ipu SCRIPT`."""

_EPILOG = """\
Scripts may be written for Graphcore IPUs, or import tensorflow_ipu themselves. All that
stands behind SCRIPT is the script's own. docs/distributed.md has more."""

_NOT_RUN = 2


def main(arguments: Sequence[str], alone: Callable[[Sequence[str]], int]) -> int:
    """Executes a command line."""
    own, script = _split(arguments)
    if not any(word.partition("=")[0] in (*_VALUES, "-h", "--help") for word in own):
        return alone(arguments)
    parser = _parser()
    options = parser.parse_args(own)
    if not script:
        parser.error("name the script to run, behind all options")
    if options.hosts is None and options.instances is None:
        parser.error("say how many processes there are by `--instances`, or where they are by `--hosts`")
    try:
        return _print_hosts(options, script) if options.hosts is not None else _run(options, script)
    except ValueError as exc:
        parser.exit(_NOT_RUN, f"python -m tensorflow_ipu run: {exc}\n")


def _run(options: argparse.Namespace, script: Sequence[str]) -> int:
    path = Path(script[0])
    if not path.is_file():
        kind = "is a folder, not a script" if path.is_dir() else "does not exist"
        raise ValueError(f"`{path}` {kind}; name a Python file")
    instances: int = options.instances
    local_replicas = _local_replicas(options.replicas, instances)
    held = hold_ports(instances, options.port)
    try:
        addresses = tuple(f"{LOOPBACK}:{one.getsockname()[1]}" for one in held)
        cluster = LaunchPlan(addresses, local_replicas, options.ipus_per_replica, options.timeout)
        count = _environment.ipu_count()
        environments = [
            {**os.environ, "PYTHONUNBUFFERED": "1", **cluster.variables(worker, count)} for worker in range(instances)
        ]
        command = [sys.executable, "-m", "tensorflow_ipu", *_passed_on(options), *script]
        return children.Children().run([command] * instances, environments)
    finally:
        for one in held:
            one.close()


def _print_hosts(options: argparse.Namespace, script: Sequence[str]) -> int:
    hosts = [host.strip() for host in options.hosts.split(",")]
    instances: int = len(hosts) if options.instances is None else options.instances
    port = DEFAULT_PORT if options.port is None else options.port
    addresses = addresses_of(hosts, instances, port)
    local_replicas = _local_replicas(options.replicas, instances)
    cluster = LaunchPlan(addresses, local_replicas, options.ipus_per_replica, options.timeout)
    for worker, address in enumerate(addresses):
        command = ["python", "-m", "tensorflow_ipu", *_passed_on(options), *script]
        # What each host offers is not known here.
        variables = _assignments(cluster.variables(worker, _environment.DEFAULT_COUNT))
        print(f"# worker {worker}, on {address.rpartition(':')[0]}:")  # noqa: T201  (What was asked for.)
        print(f"{variables} {shlex.join(command)}")  # noqa: T201
    return 0


def _assignments(variables: Mapping[str, str]) -> str:
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())


def _local_replicas(replicas: int | None, instances: int) -> int | None:
    if replicas is None:
        return None
    if replicas % instances:
        raise ValueError(
            f"`--replicas={replicas}` cannot be divided evenly among {instances} instances; choose a multiple of"
            f" {instances}"
        )
    return replicas // instances


def _passed_on(options: argparse.Namespace) -> list[str]:
    return [
        *(["--force"] if options.force else []),
        *([f"--emulations={options.emulations}"] if options.emulations is not None else []),
    ]


# Options that have a value, which may be a word of its own.
_VALUES = (
    "--instances",
    "--num-instances",
    "--replicas",
    "--num-replicas",
    "--ipus-per-replica",
    "--hosts",
    "--host",
    "--port",
    "--timeout",
)


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The command's own words, and the script with its own."""
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        at += 2 if arguments[at] in _VALUES else 1
    return list(arguments[:at]), list(arguments[at:])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tensorflow_ipu run",
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--instances",
        "--num-instances",
        metavar="N",
        type=_count,
        help="how many processes; with `--hosts`, on all hosts together, and one each by default",
    )
    parser.add_argument(
        "--replicas",
        "--num-replicas",
        metavar="R",
        type=_count,
        help="how many replicas all processes have together, a multiple of N: for scripts that ask `popdist`. Others say"
        " themselves how many IPUs each process has",
    )
    parser.add_argument(
        "--ipus-per-replica",
        metavar="I",
        type=_count,
        help="how many IPUs each replica has, for `popdist`; 1 by default",
    )
    parser.add_argument(
        "--hosts", "--host", metavar="A,B", help="print what each of these hosts has to run, and start nothing"
    )
    parser.add_argument(
        "--port",
        metavar="P",
        type=_port,
        help="the first worker's port; the others on the same host have those behind it. By default the system chooses"
        f" free ones, and with `--hosts` it is {DEFAULT_PORT}",
    )
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=_seconds,
        help="after how many seconds a worker gives up waiting for the others, where the script does not say;"
        f" {_worker_environment.DEFAULT_TIMEOUT:g} by default",
    )
    parser.add_argument("--force", action="store_true", help="as without `run`: run a script that needs missing names")
    parser.add_argument("--emulations", metavar="FILE", help="as without `run`; write `--emulations=FILE`")
    return parser


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:9]) > 0 and len(text) < 6):
        raise argparse.ArgumentTypeError(f"`{text}` is no number from 1 to 99999")
    return int(text)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 0 < int(text) < 65536):
        raise argparse.ArgumentTypeError(f"`{text}` is no port; write a number from 1 to 65535")
    return int(text)


def _seconds(text: str) -> float:
    try:
        return _worker_environment.worker_timeout({_worker_environment.TIMEOUT_VARIABLE: text or "0"})
    except ValueError:
        most = _worker_environment.MOST_SECONDS
        raise argparse.ArgumentTypeError(
            f"`{text}` is no time; write a number of seconds above 0 and up to {most}"
        ) from None
