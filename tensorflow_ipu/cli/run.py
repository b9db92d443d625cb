"""The command `run`: translates its options, or those of `poprun`, to one `mpiexec` line, runs it and shows its output."""

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
Runs a script as several workers by MPI's `mpiexec`: the one on PATH, or that of the package `mpich`. Each line of output
begins with the number of its worker. When a worker fails, the other workers are ended, and its last lines are repeated.
Ctrl-C ends all workers. The options of `run-script` are accepted too. Without any other option, the script runs as by
`run-script`. Options of `poprun` that have no meaning here are reported and ignored. See docs/distributed.md."""
_MPI = ("--mpi-global-args", "--mpi-local-args")
# Options of `poprun` that are ignored, because they configure real IPUs: `_IGNORED` with a value, `_SWITCHES` with an
# optional one.
_IGNORED = "--num-ilds --host-subnet --vipu-server-host --vipu-server-port --vipu-server-timeout --vipu-partition"
_IGNORED = [*_IGNORED.split(), "--vipu-partition-attempts", "--vipu-cluster", "--vipu-allocation"]
_SWITCHES = "--update-partition --reset-partition --remove-partition --offline-mode --synchronise-python-venv"
_SWITCHES = [*_SWITCHES.split(), "--synchronise-poplar-sdk", "--distribute-ssh-key"]
_YES, _ROOT, _TAG = YES_NO[::2], "--allow-run-as-root", "--tag-output"
_ACTING = {"--numa-aware": "bind each worker to a NUMA node", "--print-topology": "the same as `--verbose`"}
_ACTING |= {_ROOT: "let Open MPI run as root", _TAG: "accepted; output is always tagged"}
_OPTIONS = {
    "--instances --num-instances -n": ("N", "the number of workers; default: one on each host"),
    "--replicas --num-replicas": (
        "R",
        "the number of replicas of all workers together, a multiple of N, for `popdist`",
    ),
    "--ipus-per-replica": ("I", "the number of IPUs of each replica, for `popdist`; default: 1"),
    "--hosts --host -H": (
        "A,B[0-3]",
        "run an equal number of workers on each of these hosts; MPI connects to them by ssh or Slurm",
    ),
    "--hostfile": ("FILE", "run on the hosts that this file lists in the format of `mpiexec`"),
    "--timeout": ("S", f"the seconds for which workers wait for each other; default: {environment.DEFAULT_TIMEOUT:g}"),
    "--only-output-from-instance": ("I", "show only the output of this worker; the first is 0"),
    "--executable-cache-path": ("FOLDER", "keep compiled programs in this folder, as with `TF_POPLAR_FLAGS`"),
    **dict.fromkeys(_MPI, ("TEXT", "options of `mpiexec`; `-x NAME=VALUE` sets a variable of all workers")),
    **dict.fromkeys(_IGNORED, ("", argparse.SUPPRESS)),
}
_LONGEST = 1 << 16  # A line that is longer is shown in parts.
_OF_SIGNAL = 128  # The exit status of a process that signal n ended is 128 + n, as in shells.


def parser() -> argparse.ArgumentParser:
    command_parser = make_parser(
        "run", _DESCRIPTION, "that of the first worker that fails; 128 + n for signal n", _USAGE
    )
    add, types = command_parser.add_argument, {"N": int, "R": int, "I": int, "TEXT": shlex.split}
    for names, (value, text) in _OPTIONS.items():
        add(*names.split(), metavar=value, help=text, type=types.get(value, str), default=[] if names in _MPI else None)
    for name in (*_SWITCHES, *_ACTING):
        add(name, nargs="?", const="yes", choices=YES_NO, help=_ACTING.get(name, argparse.SUPPRESS))
    add("--verbose", "--vv", "-v", action="count", help="print the `mpiexec` line")
    add("--dry-run", action="store_true", help="print the `mpiexec` line and run nothing")
    return command_parser


def main(arguments: Sequence[str]) -> int:
    valued = ["--keras", "--tensorflow", "--emulations", *" ".join(_OPTIONS).split()]
    own_arguments, program_arguments = split(arguments, valued, (*_SWITCHES, *_ACTING))
    options, script_options = (command_parser := parser()).parse_known_args(own_arguments)
    run_script.parser().parse_args(script_options)
    if options == command_parser.parse_args([]):
        return run_script.main(arguments)
    if ignored := [name for name in (*_IGNORED, *_SWITCHES) if vars(options)[name[2:].replace("-", "_")]]:
        print(f"{command_parser.prog}: ignored options: `{'`, `'.join(ignored)}`", file=sys.stderr)  # noqa: T201
    try:
        (program := program_of(program_arguments)).read()
        command = [sys.executable, *program.interpreter, "-m", "tensorflow_ipu", "run-script", *script_options]
        line, mark = _line(options, [*command, *program.words])
    except ValueError as exc:
        message = str(exc)
        if not program_arguments:
            command_parser.error(message)
        command_parser.exit(WRONG, f"{command_parser.prog}: {message}\n")
    if options.dry_run or options.verbose or options.print_topology in _YES:
        print(shlex.join(line), file=sys.stdout if options.dry_run else sys.stderr, flush=True)
    return 0 if options.dry_run else execute(line, Output(mark, options.only_output_from_instance))


def _line(options: argparse.Namespace, command: list[str]) -> tuple[list[str], str]:
    """Returns the `mpiexec` line, and a regular expression for the marks that `mpiexec` puts before pieces of output.

    A mark contains the number of the worker: `[1,3]<stdout>: step 7` is output of worker 3.

    Raises:
      ValueError: Options are invalid or contradict each other, or there is no `mpiexec`.
    """
    for name in ("instances", "replicas", "ipus_per_replica"):
        if (count := getattr(options, name)) is not None and not 0 < count < 100000:
            raise ValueError(f"`--{name.replace('_', '-')}={count}` is no number from 1 to 99999")
    hosts = [] if options.hosts is None else _hosts(options.hosts)
    if options.hostfile is not None and (hosts or options.instances is None or not os.path.isfile(options.hostfile)):
        raise ValueError(f"`--hostfile={options.hostfile}` must name a file, with `--instances` and without `--hosts`")
    instances: int = options.instances or len(hosts) or 1
    for name, parts, noun in (("replicas", instances, "instances"), ("instances", len(hosts) or 1, "hosts")):
        if (count := getattr(options, name) or 0) % parts:
            raise ValueError(f"`--{name}={count}` cannot be divided evenly among {parts} {noun}; choose a multiple")
    if (only := options.only_output_from_instance) not in (None, *range(instances)):
        raise ValueError(f"`--only-output-from-instance={only}` must be from 0 to {instances - 1}")
    variables, mpi_options = {"PYTHONUNBUFFERED": "1"}, [*options.mpi_global_args, *options.mpi_local_args]
    while "-x" in mpi_options[:-1]:
        index = mpi_options.index("-x")
        name, is_set, value = mpi_options.pop(index + 1).partition("=")
        variables[name] = value if is_set else os.environ.get(name, "")
        del mpi_options[index]
    if options.executable_cache_path:
        flag = f"--executable_cache_path={shlex.quote(os.path.abspath(options.executable_cache_path))}"
        flags = variables.get(environment.FLAGS_VARIABLE, environment.text_of(environment.FLAGS_VARIABLE, None))
        variables[environment.FLAGS_VARIABLE] = f"{flags} {flag}".strip()
    replicas = options.replicas and options.replicas // instances
    needed_ipus = (replicas or 1) * (options.ipus_per_replica or 1)
    default_ipus = environment.DEFAULT_COUNT if options.hosts or options.hostfile else environment.ipu_count()
    settings = {
        environment.REPLICAS_VARIABLE: replicas,
        environment.IPUS_PER_REPLICA_VARIABLE: options.ipus_per_replica,
        environment.TIMEOUT_VARIABLE: options.timeout,
        environment.COUNT_VARIABLE: needed_ipus if needed_ipus > default_ipus else None,
    }
    variables |= {name: str(value) for name, value in settings.items() if value}
    environment.worker_timeout(variables)
    path, is_hydra, space = _mpiexec()
    is_root = options.allow_run_as_root in _YES or _ROOT in mpi_options
    line = [path, "--wdir", os.getcwd()]
    if is_hydra:  # The pattern makes hydra mark output as Open MPI does.
        line += ["-prepend-pattern", "[1,%r]<stdout>: ", "-print-all-exitcodes"]
    else:
        line += [_TAG, _ROOT] if is_root else [_TAG]
    line += ["--host", ",".join(f"{host}:{instances // len(hosts)}" for host in hosts)] if hosts else []
    if options.hostfile:
        line += ["--hostfile", options.hostfile]
    elif not (is_hydra or hosts):
        line.append("--oversubscribe")
    if not {"-bind-to", "--bind-to"} & set(mpi_options):  # By default, Open MPI binds a worker to one core.
        line += ["--bind-to", "numa" if options.numa_aware in _YES else "none"]
    option = "-genv" if is_hydra else "-x"
    line += [word for name, value in variables.items() for word in (option, f"{name}={value}")]
    line += [*(word for word in mpi_options if word not in (_TAG, _ROOT)), "-n", str(instances), *command]
    return line, rf"\[[^][]*,(\d+)\]<std(?:out|err)>:{space}"


def _mpiexec() -> tuple[str, bool, str]:
    """Returns the path of `mpiexec`, True for the hydra of MPICH or Intel MPI, and the text that follows each mark."""
    for path in (shutil.which("mpiexec"), shutil.which("mpirun"), f"{sys.prefix}/bin/mpiexec"):
        with suppress(OSError, subprocess.SubprocessError):
            process = subprocess.run([path or "", "--version"], capture_output=True, check=True, text=True, timeout=60)
            if family := re.search(r"HYDRA|Intel|(?:Open MPI|OpenRTE|PRRTE)\D*(\d+)", process.stdout):
                return path or "", not family[1], "" if int(family[1] or 5) < 5 else " "
    raise ValueError("PATH has no `mpiexec` of MPICH, Intel MPI or Open MPI; install one, as by `pip install mpich`")


def _hosts(text: str) -> list[str]:
    """Returns the hosts of a list: `a[0-2,4],b` -> a0, a1, a2, a4, b."""
    hosts = list[str]()
    for host in re.split(r",(?![^\[]*\])", text.replace(" ", "")):
        parts = re.fullmatch(r"(\w[\w.-]*)(?:\[(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)\]([\w.-]*))?", host) or ["", "", "", ""]
        for interval in (parts[2] or "").split(","):
            first, _, last = interval.partition("-")
            numbers = range(int(first), int(last or first) + 1) if first else ()
            hosts += [f"{parts[1]}{number:0{len(first)}}{parts[3]}" for number in numbers] or [parts[1]]
        if not parts[1] or len(set(hosts)) < len(hosts):
            raise ValueError(f"`--hosts` has `{host}` twice, or it is no host; write each once, as `a,b` or `a[0-2,4]`")
    return hosts


class Output:
    r"""Shows the output of `mpiexec` in whole lines, each with the number of its worker.

    `mpiexec` writes the pieces of all workers as they arrive, each with a mark in front. Hydra may insert a piece of
    one worker into a line of another: `[1,0]<stdout>: lo[1,1]<stdout>: x\n[1,0]<stdout>: ss 3\n`. The pieces of each
    worker are collected until its line ends: the example gives `[1] x` and `[0] loss 3`. A carriage return overwrites a
    line, so only the text after the last one is shown. Text before the first mark of a line is of `mpiexec` itself.
    """

    def __init__(self, mark: str, shown_worker: int | None = None) -> None:
        """Shows the lines of `shown_worker`, or of all workers if None; `mark` is a regular expression with the number."""
        self._mark, self._shown_worker = re.compile(mark.encode()), shown_worker
        self._incomplete = defaultdict[BinaryIO, bytes](bytes)
        self._pieces = defaultdict[BinaryIO, defaultdict[int, bytes]](lambda: defaultdict(bytes))
        self._last_lines = defaultdict[int, deque[str]](lambda: deque(maxlen=20))
        self._codes = list[int]()  # The wait status of each worker, which hydra prints at the end.
        self._failed = dict[int, int]()  # The exit status of each failed worker in the order of failures; 0 if unknown.

    def feed(self, target: BinaryIO, data: bytes) -> None:
        """Adds output of `mpiexec` and writes complete lines to `target`; empty `data` means the end of the output."""
        *lines, remainder = (self._incomplete[target] + data).split(b"\n")
        if remainder and (len(remainder) > _LONGEST or not data):
            cut = remainder.rfind(b"[", -64) if data else len(remainder)  # An incomplete mark may begin at the bracket.
            lines, remainder = [*lines, remainder[:cut]], remainder[cut:]
        self._incomplete[target] = remainder
        for line in lines:
            mpiexec_text, *pieces = self._mark.split(line)
            if mpiexec_text or not pieces:
                self._write_mpiexec_line(mpiexec_text.decode(errors="replace"))
            for worker, text in zip(pieces[::2], pieces[1::2], strict=True):
                self._pieces[target][int(worker)] += text
            if pieces:
                self._write_worker_line(target, int(pieces[-2]))
        for worker in [] if data else list(self._pieces[target]):
            self._write_worker_line(target, worker)

    def status(self, code: int) -> int:
        """Returns the exit status of the first failed worker and prints its last lines; `code` is the status of `mpiexec`.

        Hydra ends the other workers by SIGKILL, and its own status is the bitwise or of all. So a worker that ended
        in another way is assumed to have failed first. If all were killed, the first is unknown, and the lines of each
        are printed.
        """
        codes = [(worker, wait) for worker, wait in enumerate(self._codes) if wait]
        for worker, wait in sorted(codes, key=lambda item: item[1] == signal.SIGKILL):
            self._failed.setdefault(worker, wait >> 8 or _OF_SIGNAL + wait % 128)
        workers = list(self._failed) if code else []
        status = (self._failed[workers[0]] if workers else 0) or (_OF_SIGNAL - code if code < 0 else code)
        signals = {_OF_SIGNAL + number: f"was ended by {number.name}" for number in signal.Signals}
        for worker in workers[: None if status == _OF_SIGNAL + signal.SIGKILL else 1]:
            fate = signals.get(status, f"ended with status {status}")
            lines = [f"worker {worker} {fate}; its last lines:", *(self._last_lines[worker] or ["(none)"])]
            print(*lines, sep="\n  ", file=sys.stderr, flush=True)  # noqa: T201
        return status

    def _write_mpiexec_line(self, line: str) -> None:
        if codes := re.fullmatch(r"(?:\[mpiexec@\S+ Exit codes: )?\[\S+\] ([\d,]+)", line):
            self._codes += map(int, codes[1].split(","))
            return
        if failed := re.search(r"process rank (\d+) with PID|Process name: \S*,(\d+)\]", line):
            self._failed.setdefault(int(failed[1] or failed[2]), 0)
        print(line, file=sys.stderr, flush=True)  # noqa: T201

    def _write_worker_line(self, target: BinaryIO, worker: int) -> None:
        line = self._pieces[target].pop(worker).rstrip(b"\r").rpartition(b"\r")[2]
        self._last_lines[worker].append(line.decode(errors="replace"))
        if failed := re.fullmatch(rf"{run_script.FAILED}(\d+)", self._last_lines[worker][-1]):
            self._failed.setdefault(worker, int(failed[1]))
        if self._shown_worker in (None, worker):
            target.write(b"[%d] %s\n" % (worker, line))
            target.flush()


def execute(line: Sequence[str], output: Output) -> int:
    """Runs `mpiexec` and returns its exit status. Passes Ctrl-C, SIGTERM and SIGHUP on; a second signal kills `mpiexec`."""
    process = subprocess.Popen(
        line,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # The terminal then sends Ctrl-C to this process only.
        # `prctl(PR_SET_PDEATHSIG, SIGTERM)`: `mpiexec` ends when this process ends.
        preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGTERM),  # noqa: PLW1509  (There are no other threads.)
    )
    caught = list[int]()

    def forward(number: int, _: object) -> None:
        process.send_signal(signal.SIGKILL if caught else number)
        caught.append(number)
        signal.alarm(10)  # The alarm kills `mpiexec` if workers do not end within 10 seconds.

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, forward)
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
