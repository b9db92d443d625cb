"""The command `run`: makes one line of MPI's `mpiexec` of its options, or those of `poprun`, and shows its workers."""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from typing import BinaryIO

from tensorflow_ipu._base import environment
from tensorflow_ipu.cli import run_script
from tensorflow_ipu.cli.parsers import WRONG, YES_NO, make_parser, split
from tensorflow_ipu.cli.programs import program_of

_USAGE = "{prog} run [OPTION ...] [python] SCRIPT | -m MODULE | -c CODE [ARGUMENT ...]"
_DESCRIPTION = """\
Runs a script as several workers, by one line of MPI's `mpiexec`: the one on PATH, or that of the package `mpich`.
Each line of output begins with the number of its worker. When one fails, the others are ended, and its last lines
are shown again. Ctrl-C is handed on to all. Without an option of a cluster, the script runs as by `run-script`,
whose options are taken too. Options of `poprun` without a meaning here are named. docs/distributed.md has more."""
_MPI = ("--mpi-global-args", "--mpi-local-args")
# Options of `poprun` for what only a machine of IPUs has, with a value, and with one or none.
_IGNORED = "--num-ilds --host-subnet --vipu-server-host --vipu-server-port --vipu-server-timeout --vipu-partition"
_IGNORED = [*_IGNORED.split(), "--vipu-partition-attempts", "--vipu-cluster", "--vipu-allocation"]
_SWITCHES = "--update-partition --reset-partition --remove-partition --offline-mode --synchronise-python-venv"
_SWITCHES = [*_SWITCHES.split(), "--synchronise-poplar-sdk", "--distribute-ssh-key"]
_YES, _ROOT, _TAG = YES_NO[::2], "--allow-run-as-root", "--tag-output"
_ACTING = {"--numa-aware": "bind each worker to a NUMA node", "--print-topology": "the same as `--verbose`"}
_ACTING |= {_ROOT: "let Open MPI run as root", _TAG: "is so in any case"}
_OPTIONS = {
    "--instances --num-instances -n": ("N", "how many workers; by default one on each host"),
    "--replicas --num-replicas": ("R", "how many replicas all workers have together, a multiple of N, for `popdist`"),
    "--ipus-per-replica": ("I", "how many IPUs each replica has, for `popdist`; 1 by default"),
    "--hosts --host -H": ("A,B[0-3]", "run as many workers on each of these hosts, which MPI reaches by ssh or Slurm"),
    "--hostfile": ("FILE", "run on the hosts of this file, as `mpiexec` reads it"),
    "--timeout": ("S", f"how many seconds workers wait for each other; {environment.DEFAULT_TIMEOUT:g} by default"),
    "--only-output-from-instance": ("I", "show what this worker writes only, from 0"),
    "--executable-cache-path": ("FOLDER", "store compiled programs in this folder, as by `TF_POPLAR_FLAGS`"),
    **dict.fromkeys(_MPI, ("TEXT", "options of `mpiexec`; `-x NAME=VALUE` sets a variable of all workers")),
    **dict.fromkeys(_IGNORED, ("", argparse.SUPPRESS)),
}
_LONGEST = 1 << 16  # A line that is longer is shown in parts.
_OF_SIGNAL = 128  # What a shell adds to the number of a signal that ended a process.


def parser() -> argparse.ArgumentParser:
    made = make_parser("run", _DESCRIPTION, "that of the first worker to fail; 128 and a signal's number", _USAGE)
    add, kinds = made.add_argument, {"N": int, "R": int, "I": int, "TEXT": shlex.split}
    for names, (value, text) in _OPTIONS.items():
        add(*names.split(), metavar=value, help=text, type=kinds.get(value, str), default=[] if names in _MPI else None)
    for name in (*_SWITCHES, *_ACTING):
        add(name, nargs="?", const="yes", choices=YES_NO, help=_ACTING.get(name, argparse.SUPPRESS))
    add("--verbose", "--vv", "-v", action="count", help="print the `mpiexec` line")
    add("--dry-run", action="store_true", help="print the `mpiexec` line, and run nothing")
    return made


def main(arguments: Sequence[str]) -> int:
    valued = ["--keras", "--tensorflow", "--emulations", *" ".join(_OPTIONS).split()]
    own, words = split(arguments, valued, (*_SWITCHES, *_ACTING))
    options, of_script = (made := parser()).parse_known_args(own)
    run_script.parser().parse_args(of_script)
    if options == made.parse_args([]):
        return run_script.main(arguments)
    if ignored := [each for each in (*_IGNORED, *_SWITCHES) if vars(options)[each[2:].replace("-", "_")]]:
        print(f"{made.prog}: without a meaning here: `{'`, `'.join(ignored)}`", file=sys.stderr)  # noqa: T201
    try:
        (program := program_of(words)).read()
        command = [sys.executable, *program.interpreter, "-m", "tensorflow_ipu", "run-script", *of_script]
        line, mark = _line(options, [*command, *program.words])
    except ValueError as exc:
        made.exit(WRONG, f"{made.prog}: {exc}\n") if words else made.error(str(exc))
    if options.dry_run or options.verbose or options.print_topology in _YES:
        print(shlex.join(line), file=sys.stdout if options.dry_run else sys.stderr, flush=True)
    return 0 if options.dry_run else execute(line, Output(mark, options.only_output_from_instance))


def _line(options: argparse.Namespace, command: list[str]) -> tuple[list[str], str]:
    """Returns the line of `mpiexec` and a regular expression of the marks that it puts in front of output."""
    for name in ("instances", "replicas", "ipus_per_replica"):
        if (count := getattr(options, name)) is not None and not 0 < count < 100000:
            raise ValueError(f"`--{name.replace('_', '-')}={count}` is no number from 1 to 99999")
    hosts = [] if options.hosts is None else _hosts(options.hosts)
    if options.hostfile is not None and (hosts or options.instances is None or not os.path.isfile(options.hostfile)):
        raise ValueError(f"`--hostfile={options.hostfile}` must name a file, with `--instances` and without `--hosts`")
    instances: int = options.instances or len(hosts) or 1
    for name, parts, what in (("replicas", instances, "instances"), ("instances", len(hosts) or 1, "hosts")):
        if (count := getattr(options, name) or 0) % parts:
            raise ValueError(f"`--{name}={count}` cannot be divided evenly among {parts} {what}; choose a multiple")
    if (only := options.only_output_from_instance) not in (None, *range(instances)):
        raise ValueError(f"`--only-output-from-instance={only}` must be from 0 to {instances - 1}")
    variables, words = {"PYTHONUNBUFFERED": "1"}, [*options.mpi_global_args, *options.mpi_local_args]
    while "-x" in words[:-1]:
        at = words.index("-x")
        name, is_set, value = words.pop(at + 1).partition("=")
        variables[name] = value if is_set else os.environ.get(name, "")
        del words[at]
    if options.executable_cache_path:
        flag = f"--executable_cache_path={shlex.quote(os.path.abspath(options.executable_cache_path))}"
        flags = variables.get(environment.FLAGS_VARIABLE, environment.text_of(environment.FLAGS_VARIABLE, None))
        variables[environment.FLAGS_VARIABLE] = f"{flags} {flag}".strip()
    replicas = options.replicas and options.replicas // instances
    wanted = (replicas or 1) * (options.ipus_per_replica or 1)
    offered = environment.DEFAULT_COUNT if options.hosts or options.hostfile else environment.ipu_count()
    own = {environment.REPLICAS_VARIABLE: replicas, environment.IPUS_PER_REPLICA_VARIABLE: options.ipus_per_replica}
    own |= {environment.TIMEOUT_VARIABLE: options.timeout, environment.COUNT_VARIABLE: wanted * (wanted > offered)}
    variables |= {name: str(value) for name, value in own.items() if value}
    environment.worker_timeout(variables)
    path, is_hydra, space = _mpiexec()
    is_root = options.allow_run_as_root in _YES or _ROOT in words
    line = [path, "--wdir", os.getcwd()]  # Hydra marks output as Open MPI does.
    line += ["-prepend-pattern", "[1,%r]<stdout>: ", "-print-all-exitcodes"] if is_hydra else [_TAG, *[_ROOT] * is_root]
    line += ["--host", ",".join(f"{host}:{instances // len(hosts)}" for host in hosts)] if hosts else []
    line += ["--hostfile", options.hostfile] if options.hostfile else ["--oversubscribe"] * (not (is_hydra or hosts))
    if not {"-bind-to", "--bind-to"} & set(words):  # Open MPI binds a worker to one core if nothing is said.
        line += ["--bind-to", "numa" if options.numa_aware in _YES else "none"]
    option = "-genv" if is_hydra else "-x"
    line += [word for name, value in variables.items() for word in (option, f"{name}={value}")]
    line += [*(word for word in words if word not in (_TAG, _ROOT)), "-n", str(instances), *command]
    return line, rf"\[[^][]*,(\d+)\]<std(?:out|err)>:{space}"


def _mpiexec() -> tuple[str, bool, str]:
    """Returns the path of an `mpiexec`, whether it is a hydra, and what ends its marks of output."""
    for path in (shutil.which("mpiexec"), shutil.which("mpirun"), f"{sys.prefix}/bin/mpiexec"):
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run([path or "", "--version"], capture_output=True, check=True, text=True, timeout=60)
            if family := re.search(r"HYDRA|Intel|(?:Open MPI|OpenRTE|PRRTE)\D*(\d+)", done.stdout):
                return path or "", not family[1], "" if int(family[1] or 5) < 5 else " "
    raise ValueError("PATH has no `mpiexec` of MPICH, Intel MPI or Open MPI; install one, as by `pip install mpich`")


def _hosts(text: str) -> list[str]:
    """Returns the hosts of a list: `a[0-2,4]` -> a0, a1, a2, a4."""
    found = list[str]()
    for host in re.split(r",(?![^\[]*\])", text.replace(" ", "")):
        parts = re.fullmatch(r"(\w[\w.-]*)(?:\[(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)\]([\w.-]*))?", host) or ["", "", "", ""]
        for each in (parts[2] or "").split(","):
            first, _, last = each.partition("-")
            numbers = range(int(first), int(last or first) + 1) if first else ()
            found += [f"{parts[1]}{number:0{len(first)}}{parts[3]}" for number in numbers] or [parts[1]]
        if not parts[1] or len(set(found)) < len(found):
            raise ValueError(f"`--hosts` has `{host}` twice, or it is no host; write each once, as `a,b` or `a[0-2,4]`")
    return found


class Output:
    """The output of `mpiexec`: shown in whole lines of its workers, each as it was last overwritten."""

    def __init__(self, mark: str, only: int | None = None) -> None:
        """Takes a regular expression of the marks; shows the worker `only`, or all if None."""
        self._mark, self._only = re.compile(mark.encode()), only
        self._rests = defaultdict[BinaryIO, bytes](bytes)
        self._begun = defaultdict[BinaryIO, defaultdict[int, bytes]](lambda: defaultdict(bytes))
        self._last = defaultdict[int, deque[str]](lambda: deque(maxlen=20))
        self._codes = list[int]()  # What `wait` returned of each worker, as hydra prints it at the end.
        self._failed = dict[int, int]()  # The status of workers, the first to fail first; 0 if it is not known.

    def feed(self, target: BinaryIO, data: bytes) -> None:
        """Takes a piece of what `mpiexec` wrote, and writes the lines that are complete; no data is the end."""
        *lines, rest = (self._rests[target] + data).split(b"\n")
        if rest and (len(rest) > _LONGEST or not data):
            cut = rest.rfind(b"[", -64) if data else len(rest)  # A mark may begin there.
            lines, rest = [*lines, rest[:cut]], rest[cut:]
        self._rests[target] = rest
        for line in lines:
            # A mark is in front of each piece that a worker wrote, which hydra puts within lines of others too.
            own, *marked = self._mark.split(line)
            if own or not marked:
                self._write_own(own.decode(errors="replace"))
            for worker, text in zip(marked[::2], marked[1::2], strict=True):
                self._begun[target][int(worker)] += text
            if marked:
                self._write(target, int(marked[-2]))
        for worker in [] if data else list(self._begun[target]):
            self._write(target, worker)

    def status(self, code: int) -> int:
        """Returns the exit status, given that of `mpiexec`, and prints the last lines of the worker that failed."""
        # Hydra ends the others by SIGKILL. Its own status is the bitwise or of all.
        codes = [(worker, wait) for worker, wait in enumerate(self._codes) if wait]
        for worker, wait in sorted(codes, key=lambda each: each[1] == signal.SIGKILL):
            self._failed.setdefault(worker, wait >> 8 or _OF_SIGNAL + wait % 128)
        workers = list(self._failed) if code else []
        status = (self._failed[workers[0]] if workers else 0) or (_OF_SIGNAL - code if code < 0 else code)
        signals = {_OF_SIGNAL + each: f"was ended by {each.name}" for each in signal.Signals}
        # Which one of several was ended first by SIGKILL is not known.
        for worker in workers[: None if status == _OF_SIGNAL + signal.SIGKILL else 1]:
            fate = signals.get(status, f"ended with status {status}")
            lines = [f"worker {worker} {fate}; its last lines:", *(self._last[worker] or ["(none)"])]
            print(*lines, sep="\n  ", file=sys.stderr, flush=True)  # noqa: T201
        return status

    def _write_own(self, line: str) -> None:
        if codes := re.fullmatch(r"(?:\[mpiexec@\S+ Exit codes: )?\[\S+\] ([\d,]+)", line):
            self._codes += map(int, codes[1].split(","))
            return
        if failed := re.search(r"process rank (\d+) with PID|Process name: \S*,(\d+)\]", line):
            self._failed.setdefault(int(failed[1] or failed[2]), 0)
        print(line, file=sys.stderr, flush=True)  # noqa: T201

    def _write(self, target: BinaryIO, worker: int) -> None:
        line = self._begun[target].pop(worker).rstrip(b"\r").rpartition(b"\r")[2]
        self._last[worker].append(line.decode(errors="replace"))
        if failed := re.fullmatch(rf"{run_script.FAILED}(\d+)", self._last[worker][-1]):
            self._failed.setdefault(worker, int(failed[1]))
        if self._only in (None, worker):
            target.write(b"[%d] %s\n" % (worker, line))
            target.flush()


def execute(line: Sequence[str], output: Output) -> int:
    """Runs a line and returns its status. Ctrl-C, SIGTERM and SIGHUP go to `mpiexec`; the second one kills it."""
    process = subprocess.Popen(
        line,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches it through this process alone.
        # `PR_SET_PDEATHSIG`: it ends with this process.
        preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGTERM),  # noqa: PLW1509  (There are no other threads.)
    )
    caught = list[int]()

    def hand_on(number: int, _: object) -> None:
        process.send_signal(signal.SIGKILL if caught else number)
        caught.append(number)
        signal.alarm(10)  # Seconds for workers to end.

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, hand_on)
    with selectors.DefaultSelector() as selector:
        for source, target in ((process.stdout, sys.stdout.buffer), (process.stderr, sys.stderr.buffer)):
            selector.register(source or 0, selectors.EVENT_READ, target)
        while selector.get_map():
            for key, _ in selector.select():
                output.feed(key.data, data := os.read(key.fd, _LONGEST))
                if not data:
                    selector.unregister(key.fileobj)
    code = process.wait()
    return _OF_SIGNAL + caught[0] if caught else output.status(code)
