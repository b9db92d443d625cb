"""The command `run`: the command line of `mpiexec`, its output, and the end of all workers."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from io import BytesIO
from pathlib import Path
from subprocess import PIPE

import pytest

import tensorflow_ipu
from tensorflow_ipu import __main__
from tensorflow_ipu.cli.run import Output

# The package runs in an interpreter without TensorFlow.
_DRIVER = f"""
import sys, types
package = sys.modules["tensorflow_ipu"] = types.ModuleType("tensorflow_ipu")
package.__path__ = [{str(Path(tensorflow_ipu.__file__).parent)!r}]
from tensorflow_ipu.cli import run, run_script
"""
# The launcher's command line makes workers run code instead of a script.
_LAUNCH = f"""{_DRIVER}
options = run.parser().parse_args(sys.argv[2:])
line, mark = run._line(options, [sys.executable, "-c", sys.argv[1]])
sys.exit(run.execute(line, run.Output(mark, options.only_output_from_instance)))
"""
# `meet()` returns when both workers have called it. Each worker reads from its pipe, and writes to the other worker's.
_HEAD = """
import os, signal, sys
worker = int(os.environ["PMI_RANK"])

def meet():
    for at in (0, 1):
        open(str(at), "r" if at == worker else "w").close()
"""
_MARK = r"\[[^][]*,(\d+)\]<std(?:out|err)>: "


@pytest.fixture
def start(tmp_path):
    """Returns a function: `start(code, *options)` runs code, with `_HEAD` above it, as two workers of the launcher."""
    processes = []

    def begin(code: str, *options: object) -> subprocess.Popen[str]:
        for worker in range(2):
            os.mkfifo(tmp_path / str(worker))
        command = [sys.executable, "-c", _LAUNCH, _HEAD + textwrap.dedent(code), "-n", "2", *map(str, options)]
        processes.append(subprocess.Popen(command, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True))
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()  # This ends `mpiexec` too.
        process.communicate()


@pytest.fixture
def run_command(capfd):
    """Returns a function: `run_command(*words)` runs the command here, and returns its status, output and errors."""

    def run(*words: object) -> tuple[object, str, str]:
        try:
            status: object = __main__.main([str(word) for word in words])
        except SystemExit as exc:
            status = exc.code
        captured = capfd.readouterr()
        return status, captured.out, captured.err

    return run


_HYDRA = "-prepend-pattern '[1,%r]<stdout>: ' -print-all-exitcodes"
_OPEN_MPI = "mpirun (Open MPI) 5.0.1"


@pytest.mark.parametrize(
    ("version", "options", "line"),
    [
        ("HYDRA build details:", "-n 2", f"{_HYDRA} --bind-to none -genv PYTHONUNBUFFERED=1 -n 2"),
        (_OPEN_MPI, "-n 2", "--tag-output --oversubscribe --bind-to none -x PYTHONUNBUFFERED=1 -n 2"),
        (
            "Intel(R) MPI Library for Linux* OS, Version 2021.13",
            "--host a,b[1-2] --instances 6 --replicas=480 --ipus-per-replica 2 --timeout 5 --numa-aware yes",
            (
                f"{_HYDRA} --host a:2,b1:2,b2:2 --bind-to numa -genv PYTHONUNBUFFERED=1 -genv TENSORFLOW_IPU_REPLICAS=80"
                " -genv TENSORFLOW_IPU_IPUS_PER_REPLICA=2 -genv TENSORFLOW_IPU_TIMEOUT=5 -genv TENSORFLOW_IPU_COUNT=160 -n 6"
            ),
        ),
        (
            "mpiexec (OpenRTE) 4.1.4",
            "-H a,b --numa-aware --allow-run-as-root --mpi-local-args '-x A=1 -x B --mca q w' --mpi-global-args=--tag-output",
            (
                "--tag-output --allow-run-as-root --host a:1,b:1 --bind-to numa -x PYTHONUNBUFFERED=1 -x A=1 -x 'B=of mine'"
                " --mca q w -n 2"
            ),
        ),
        ("HYDRA", "--hostfile hosts -n 3", f"{_HYDRA} --hostfile hosts --bind-to none -genv PYTHONUNBUFFERED=1 -n 3"),
        (
            _OPEN_MPI,
            "--hostfile hosts -n 3 --mpi-global-args '--bind-to core'",
            "--tag-output --hostfile hosts -x PYTHONUNBUFFERED=1 --bind-to core -n 3",
        ),
    ],
)
def test_options_become_one_line_of_either_mpi(run_command, tmp_path, monkeypatch, version, options, line):
    for name in ("train.py", "hosts"):
        (tmp_path / name).touch()
    path = tmp_path / "mpiexec"
    path.write_text(f"#!/bin/sh\necho '{version}'\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("B", "of mine")
    monkeypatch.setenv("TENSORFLOW_IPU_COUNT", "64")
    monkeypatch.chdir(tmp_path)
    script = f"{sys.executable} -m tensorflow_ipu run-script train.py --x 'a b'"
    status, out, err = run_command("run", *shlex.split(options), "--dry-run", "train.py", "--x", "a b")
    assert (status, out, err) == (0, f"{path} --wdir {tmp_path} {line} {script}\n", "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--instances 0 S", "`--instances=0` is no number from 1 to 99999"),
        ("--instances two S", "argument --instances/--num-instances/-n: invalid int value: 'two'"),
        ("--instances 2", "name the script to run"),
        ("--instances 2 none.py", "`none.py` does not exist; name a Python file"),
        ("--instances 3 --replicas 4 S", "`--replicas=4` cannot be divided evenly among 3 instances"),
        # There are more workers than replicas.
        (
            "--instances 4 --replicas 3 S",
            "`--replicas=3` cannot be divided evenly among 4 instances; choose a multiple",
        ),
        ("--instances 2 --timeout -1 S", "`TENSORFLOW_IPU_TIMEOUT=-1` is no number of seconds above 0"),
        ("--hosts a,b --instances 3 S", "`--instances=3` cannot be divided evenly among 2 hosts"),
        ("--hosts a:1,b S", "`--hosts` has `a:1` twice, or it is no host"),
        ("--hosts a,b[0-] S", "`--hosts` has `b[0-]` twice, or it is no host"),
        ("--hosts a,a S", "`--hosts` has `a` twice"),
        ("--hostfile none -n 2 S", "`--hostfile=none` must name a file, with `--instances`"),
        ("-n 2 --only-output-from-instance 2 S", "`--only-output-from-instance=2` must be from 0 to 1"),
        ("-n 2 --port 1 S", "unrecognized arguments: --port"),
    ],
)
def test_wrong_words_are_refused(run_command, options, message):
    status, out, err = run_command("run", *(__file__ if word == "S" else word for word in options.split()))
    assert (status, out) == (2, "")
    assert message in err


def test_machine_without_mpi_is_told_what_to_install(run_command, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("sys.prefix", "/nowhere")
    status, _, err = run_command("run", "-n", 2, __file__)
    assert status == 2
    assert "PATH has no `mpiexec` of MPICH, Intel MPI or Open MPI; install one, as by `pip install mpich`" in err


# Hydra prefixes each piece that a worker writes, even within a line of another worker.
def test_torn_lines_are_put_together_and_shown_as_they_were_last_overwritten(capfd):
    target, output = BytesIO(), Output(_MARK)
    output.feed(target, b"[1,0]<stdout>: half[1,1]<std")
    output.feed(target, b"out>: 1/3\r2/3\r")
    output.feed(target, b"[1,0]<stdout>:  line\nown\n[1,1]<stdout>: 3/3\r\n")
    assert target.getvalue() == b"[0] half line\n[1] 3/3\n"
    output.feed(target, b"[1,0]<stdout>: [1] no mark[1,1]<stdout>: end")
    output.feed(target, b"")
    assert target.getvalue() == b"[0] half line\n[1] 3/3\n[1] end\n[0] [1] no mark\n"
    assert capfd.readouterr().err == "own\n"


_LOST = "prterun noticed that process rank 2 with PID 6 on node h exited on\n"


@pytest.mark.parametrize(
    ("printed", "code", "status", "report"),
    [
        # Hydra returned 3 | 9 for a worker that ended with 3, because it killed the other worker.
        ("[mpiexec@h] Exit codes: [a] 9,768\n[b] 0,0\n", 11, 3, "worker 1 ended with status 3"),
        ("[mpiexec@h] Exit codes: [a] 9,0\n[b] 0,139\n", 11, 139, "worker 3 was ended by SIGSEGV"),
        ("[1,2]<stdout>: the script ended with status 4\n", 4, 4, "worker 2 ended with status 4"),
        ("  Process name: [prterun-h-7@1,3]\n", 5, 5, "worker 3 ended with status 5"),
        (_LOST, 137, 137, "worker 2 was ended by SIGKILL"),
        ("no host a\n", -signal.SIGKILL, 137, ""),
        ("[mpiexec@h] Exit codes: [a] 0,0\n", 0, 0, ""),
    ],
)
def test_worker_that_failed_first_is_found(capfd, printed, code, status, report):
    output = Output(_MARK)
    output.feed(BytesIO(), printed.encode())
    assert output.status(code) == status
    err = capfd.readouterr().err
    assert report in err
    assert ("Exit codes" in err, "worker" in err) == (False, bool(report))


def test_lines_of_workers_are_whole_and_the_last_ones_of_one_that_fails_are_shown_again(start):
    code = """
        print("begun", os.environ["TENSORFLOW_IPU_REPLICAS"], sys.stdout.write_through)
        for line in range(50):
            for letter in f"{worker} {line}\\n":  # A system call each.
                os.write(1, letter.encode())
        meet()
        if worker == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        signal.pause()
    """
    process = start(code, "--replicas", 4)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGSEGV
    for worker in range(2):
        worker_lines = [line for line in out.splitlines() if line.startswith(f"[{worker}]")]
        assert worker_lines == [f"[{worker}] begun 2 True", *[f"[{worker}] {worker} {line}" for line in range(50)]]
    last = "\n".join(f"  1 {line}" for line in range(30, 50))
    assert f"worker 1 was ended by SIGSEGV; its last lines:\n{last}\n" in err


# Hydra left all workers waiting in `MPI_Init` for a worker that had ended before.
def test_script_that_ends_with_a_status_before_it_joins_ends_the_other_workers(start):
    code = """
def script():
    meet()
    if worker == 1:
        sys.exit(3)
    signal.pause()

sys.exit(run_script._as_worker(script))
"""
    process = start(_DRIVER + code, "--only-output-from-instance", 0)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (3, "")
    assert err == "worker 1 ended with status 3; its last lines:\n  the script ended with status 3\n"


@pytest.mark.parametrize(("number", "times"), [(signal.SIGTERM, 1), (signal.SIGINT, 2)])
def test_signals_end_all_workers(start, until, number, times):
    """The first signal ends workers that handle it, and the second one ends all."""
    code = f"""
        def caught(number, frame):
            print("caught", number, flush=True)
            if {times} == 1:
                sys.exit(1)
        signal.signal({int(number)}, caught)
        print("number", os.getpid(), flush=True)
        while True:
            signal.pause()
    """
    process = start(code)
    numbers = [int(process.stdout.readline().split()[-1]) for _ in range(2)]
    process.send_signal(number)
    caught = sorted(process.stdout.readline() for _ in range(2))
    assert caught == [f"[{worker}] caught {int(number)}\n" for worker in range(2)]
    if times == 2:
        process.send_signal(number)
    process.communicate(timeout=240)
    assert process.returncode == 128 + number
    until(lambda: not any(os.path.exists(f"/proc/{worker}") for worker in numbers))


def test_help_is_there_and_loads_no_tensorflow(tmp_path):
    command = [sys.executable, "-X", "importtime", "-m", "tensorflow_ipu", "run", "--help"]
    env = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=True)
    assert "--instances" in done.stdout
    assert "Ctrl-C ends all workers" in done.stdout
    assert not re.search(r"\| +tensorflow$", done.stderr, re.MULTILINE)
