"""The command `run`, which runs a script as workers of a cluster and takes the command lines of `poprun`."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence

from tensorflow_ipu._base import environment
from tensorflow_ipu.cli import run_script
from tensorflow_ipu.cli.launcher import DEFAULT_PORT, LOOPBACK, Children, LaunchPlan, addresses_of, hold_ports
from tensorflow_ipu.cli.parsers import WRONG, YES_NO, make_parser, show, split
from tensorflow_ipu.cli.programs import Program, program_of

_USAGE = """\
{prog} run --instances N [--replicas R] [OPTION ...] [python] SCRIPT [ARGUMENT ...]
       {prog} run --hosts A,B [--instances N] [OPTION ...] [python] SCRIPT [ARGUMENT ...]
       {prog} run SCRIPT [ARGUMENT ...]"""

_DESCRIPTION = """\
Runs a script in several processes of this machine, which form a cluster: each is one
worker of TensorFlow's, by the variable TF_CONFIG. Each line of their output has the
number of its worker in front. When one fails, the others are ended: the status is that
of the first to fail, and its last lines are shown once more. Ctrl-C is handed on to all.

With `--hosts` nothing is started: the command that each host has to run is printed.

Without an option of a cluster, the script runs as by `run-script`."""

_EPILOG = """\
In place of SCRIPT, `-m MODULE` and `-c CODE` run a module and code. Scripts may be written
for Graphcore IPUs, or import tensorflow_ipu themselves. All that follows SCRIPT is the
script's own. Other options of `poprun` are taken, and those without a meaning here are named
in one line. docs/distributed.md has more."""

# Options that have a value, which may be a word of its own.
_COUNTS = ("--instances", "--num-instances", "-n", "--replicas", "--num-replicas", "--ipus-per-replica")
_ONLY = "--only-output-from-instance"
_VALUES = (
    "--hosts",
    "--host",
    "-H",
    "--port",
    "--timeout",
    "--keras",
    "--tensorflow",
    "--emulations",
    "--executable-cache-path",
    _ONLY,
)
_MPI = ("--mpi-global-args", "--mpi-local-args")
# Options of `poprun` that say what only a machine of IPUs has, with a value, and with one or none.
_IGNORED = ("--num-ilds", "--host-subnet", "--vipu-server-host", "--vipu-server-port", "--vipu-server-timeout")
_IGNORED += ("--vipu-partition", "--vipu-partition-attempts", "--vipu-cluster", "--vipu-allocation")
_IGNORED_SWITCHES = ("--numa-aware", "--update-partition", "--reset-partition", "--remove-partition", "--offline-mode")
_IGNORED_SWITCHES += ("--synchronise-python-venv", "--synchronise-poplar-sdk", "--distribute-ssh-key")
# What is so in any case.
_GIVEN = ("--tag-output", "--allow-run-as-root")
_SWITCHES = (*_IGNORED_SWITCHES, *_GIVEN, "--print-topology")


def parser() -> argparse.ArgumentParser:
    """The parser of options; the program is what follows them."""
    made = make_parser(
        "run",
        _DESCRIPTION,
        "0, or that of the first worker to fail; 128 and its number after a signal",
        _USAGE,
        _EPILOG,
    )
    add = made.add_argument
    words = "how many processes, 1 by default; with `--hosts`, on all hosts together, and one each by default"
    add("--instances", "--num-instances", "-n", metavar="N", type=_count, help=words)
    words = "how many replicas all processes have together, a multiple of N: for scripts that ask `popdist`. Others say"
    words += " themselves how many IPUs each process has"
    add("--replicas", "--num-replicas", metavar="R", type=_count, help=words)
    words = "how many IPUs each replica has, for `popdist`; 1 by default"
    add("--ipus-per-replica", metavar="I", type=_count, help=words)
    words = "print what each of these hosts has to run, and start nothing, unless it is this machine: `localhost`"
    add("--hosts", "--host", "-H", metavar="A,B[0-3]", help=words)
    words = "the first worker's port; the others on the same host have those after it. By default the system chooses"
    add("--port", metavar="P", type=_port, help=f"{words} free ones, and with `--hosts` it is {DEFAULT_PORT}")
    words = "after how many seconds a worker gives up waiting for the others, where the script does not say;"
    add("--timeout", metavar="S", type=_seconds, help=f"{words} {environment.DEFAULT_TIMEOUT:g} by default")
    add(_ONLY, metavar="I", type=int, help="show what this worker writes alone, from 0")
    words = "keep compiled programs in this folder, as by `TF_POPLAR_FLAGS`"
    add("--executable-cache-path", metavar="FOLDER", help=words)
    words = "options of `mpirun`, of which `-x NAME=VALUE` sets a variable of all processes"
    for option in _MPI:
        add(option, metavar="TEXT", type=shlex.split, default=[], help=words)
    words = "say where each worker is, and what it runs"
    add("--verbose", "--vv", "-v", action="count", help=words)
    add("--print-topology", nargs="?", const="yes", choices=YES_NO, help=words)
    add("--keras", choices=("2", "3"), help="as without `run`: which Keras scripts get")
    add("--tensorflow", choices=("1", "2"), help="as without `run`: what `import tensorflow` is in scripts")
    add("--force", action="store_true", help="as without `run`: run a script that needs missing names")
    add("--emulations", metavar="FILE", help="as without `run`; write `--emulations=FILE`")
    for option in _IGNORED:
        add(option, help=argparse.SUPPRESS)
    for option in (*_IGNORED_SWITCHES, *_GIVEN):
        add(option, nargs="?", const="yes", choices=YES_NO, help=argparse.SUPPRESS)
    return made


def main(arguments: Sequence[str]) -> int:
    """Executes a command line."""
    own, words = split(arguments, (*_COUNTS, *_VALUES, *_MPI, *_IGNORED), _SWITCHES)
    made = parser()
    options = made.parse_args(own)
    named = {name for name, value in vars(options).items() if value != made.get_default(name)}
    if named <= {"keras", "tensorflow", "force", "emulations"}:
        return run_script.main(arguments)
    try:
        program = program_of(words)
        hosts = _hosts(options.hosts or "localhost")
        is_here = {"localhost", LOOPBACK, socket.gethostname()}.issuperset(hosts)
        ignored = [*_IGNORED, *_IGNORED_SWITCHES, *[_ONLY] * (not is_here)]
        variables = _variables(options, [each for each in ignored if each[2:].replace("-", "_") in named])
        return _run(options, program, variables) if is_here else _print_hosts(options, hosts, program, variables)
    except ValueError as exc:
        made.exit(WRONG, f"{made.prog}: {exc}\n") if words else made.error(str(exc))


def _variables(options: argparse.Namespace, ignored: list[str]) -> dict[str, str]:
    """The variables that options of `poprun` set; says which have no meaning here, of which some are known."""
    found = dict[str, str]()
    for option in _MPI:
        words = list(getattr(options, option[2:].replace("-", "_")))
        while words:
            word = words.pop(0)
            name, _, value = words.pop(0).partition("=") if word == "-x" and words else ("", "", "")
            if value:
                found[name] = value
            elif not name and word not in _GIVEN:
                ignored.append(f"{word}` in `{option}")
                break
    if ignored:
        print(f"{parser().prog}: without a meaning here: `{'`, `'.join(ignored)}`", file=sys.stderr)  # noqa: T201
    if options.executable_cache_path:
        flag = f"--executable_cache_path={shlex.quote(os.path.abspath(options.executable_cache_path))}"
        flags = found.get(environment.FLAGS_VARIABLE, environment.text_of(environment.FLAGS_VARIABLE, None))
        found[environment.FLAGS_VARIABLE] = f"{flags} {flag}".strip()
    return found


def _hosts(text: str) -> list[str]:
    """The hosts of a list, in which `a[0-2,4]` is a0, a1, a2 and a4."""
    found = list[str]()
    for host in re.split(r",(?![^\[]*\])", text):
        ranges = re.fullmatch(r"(.+)\[([\d,-]+)\](.*)", host.strip())
        if ranges is None:
            found.append(host.strip())
            continue
        for each in ranges[2].split(","):
            ends = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", each)
            if ends is None:
                raise ValueError(f"`--hosts` has `{host}`, which is no host; write numbers as in `a[0-2,4]`")
            numbers = range(int(ends[1]), int(ends[2] or ends[1]) + 1)
            found += [f"{ranges[1]}{number:0{len(ends[1])}}{ranges[3]}" for number in numbers]
    return found


def _run(options: argparse.Namespace, program: Program, variables: Mapping[str, str]) -> int:
    program.read()
    instances: int = options.instances or 1
    only: int | None = options.only_output_from_instance
    if only is not None and not 0 <= only < instances:
        raise ValueError(
            f"`--only-output-from-instance` is {only}, but instances are numbered from 0 to {instances - 1}"
        )
    local_replicas = _local_replicas(options.replicas, instances)
    held = hold_ports(instances, options.port)
    try:
        addresses = tuple(f"{LOOPBACK}:{one.getsockname()[1]}" for one in held)
        cluster = LaunchPlan(addresses, local_replicas, options.ipus_per_replica, options.timeout)
        count = environment.ipu_count()
        own = [{**variables, **cluster.variables(worker, count)} for worker in range(instances)]
        command = _command(sys.executable, options, program)
        if options.verbose or options.print_topology in ("yes", "true", "on", "1"):
            print(_told(addresses, own, command), file=sys.stderr, flush=True)  # noqa: T201
        environments = [{**os.environ, "PYTHONUNBUFFERED": "1", **each} for each in own]
        return Children().run([command] * instances, environments, only)
    finally:
        for one in held:
            one.close()


def _print_hosts(
    options: argparse.Namespace, hosts: Sequence[str], program: Program, variables: Mapping[str, str]
) -> int:
    instances: int = options.instances or len(hosts)
    port = DEFAULT_PORT if options.port is None else options.port
    addresses = addresses_of(hosts, instances, port)
    local_replicas = _local_replicas(options.replicas, instances)
    cluster = LaunchPlan(addresses, local_replicas, options.ipus_per_replica, options.timeout)
    # What each host offers is not known here.
    own = [{**variables, **cluster.variables(worker, environment.DEFAULT_COUNT)} for worker in range(instances)]
    show(_told(addresses, own, _command("python", options, program)))
    return 0


def _told(addresses: Sequence[str], variables: Sequence[Mapping[str, str]], command: Sequence[str]) -> str:
    lines = list[str]()
    for worker, (address, own) in enumerate(zip(addresses, variables, strict=True)):
        text = " ".join(f"{name}={shlex.quote(value)}" for name, value in own.items())
        lines += [f"# worker {worker}, on {address.rpartition(':')[0]}:", f"{text} {shlex.join(command)}"]
    return "\n".join(lines)


def _local_replicas(replicas: int | None, instances: int) -> int | None:
    if replicas is None:
        return None
    if replicas % instances:
        raise ValueError(
            f"`--replicas={replicas}` cannot be divided evenly among {instances} instances; choose a multiple of"
            f" {instances}"
        )
    return replicas // instances


def _command(python: str, options: argparse.Namespace, program: Program) -> list[str]:
    emulations = [] if options.emulations is None else [f"--emulations={options.emulations}"]
    chosen = {"keras": options.keras, "tensorflow": options.tensorflow}
    versions = [f"--{name}={version}" for name, version in chosen.items() if version is not None]
    own = [*versions, *["--force"] * options.force, *emulations]
    return [python, *program.interpreter, "-m", "tensorflow_ipu", "run-script", *own, *program.words]


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
        return environment.worker_timeout({environment.TIMEOUT_VARIABLE: text or "0"})
    except ValueError:
        most = environment.MOST_SECONDS
        raise argparse.ArgumentTypeError(
            f"`{text}` is no time; write a number of seconds above 0 and up to {most}"
        ) from None
