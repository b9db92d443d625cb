"""The command `run`: what it starts, what it prints, and how all ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from collections import deque
from io import BytesIO
from pathlib import Path

import pytest

import tensorflow_ipu
from tensorflow_ipu import __main__
from tensorflow_ipu.cli import launcher
from tensorflow_ipu.cli.launcher import Lines

# The package in an interpreter without TensorFlow; one line.
_PACKAGE = f"""import sys, types; package = sys.modules["tensorflow_ipu"] = types.ModuleType("tensorflow_ipu"); \
package.__path__ = [{str(Path(tensorflow_ipu.__file__).parent)!r}]; \
from tensorflow_ipu._base import environment"""
_LAUNCHER = f"""
{_PACKAGE}
import os
from tensorflow_ipu.cli import launcher
launcher.progress.AFTER_SECONDS = 0.0
"""
# Each of its processes runs the same code.
_DRIVER = f"""{_LAUNCHER}
count, launcher._TO_END = int(sys.argv[1]), float(sys.argv[2])
launcher._TO_SAY, launcher._TO_INTERRUPT = 0.5, 120.0
command = [sys.executable, "-c", sys.argv[3]]
sys.exit(launcher.Children().run([command] * count, [{{**os.environ, "WORKER": str(i)}} for i in range(count)]))
"""
_ECHO = "import json, os, sys; v = os.environ.get; print(json.dumps([v('TF_CONFIG'), sys.argv, v('TENSORFLOW_IPU_REPLICAS')]))"
_HEAD = """
import os, signal, sys, time
worker = int(os.environ["WORKER"])

def arrive():
    open(f"{worker} is there", "x").close()

def wait_for(*others):
    while not all(os.path.exists(f"{other} is there") for other in others):
        time.sleep(0.01)
"""


@pytest.fixture
def launch(tmp_path):
    """`launch(count, code)` has the launcher run so many processes, and gives status, output, errors.

    In the code, `arrive()` says that this process has come so far, and `wait_for(0, 2)` waits until those have. Who is
    asked to end has `to_end` seconds for it.
    """

    def run(count: int, code: str, to_end: float = 120) -> tuple[int, list[str], str]:
        done = subprocess.run(
            [sys.executable, "-c", _DRIVER, str(count), str(to_end), _HEAD + textwrap.dedent(code)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return done.returncode, done.stdout.splitlines(), done.stderr

    return run


@pytest.fixture
def here(capfd):
    """`here(*words)` runs the command in this process, and gives status, output, errors."""

    def run(*words: object) -> tuple[object, str, str]:
        try:
            status: object = __main__.main([str(word) for word in words])
        except SystemExit as exc:
            status = exc.code
        said = capfd.readouterr()
        return status, said.out, said.err

    return run


def test_lines_have_the_number_of_their_process_and_none_is_torn(launch):
    status, out, err = launch(
        3,
        """
        print("err", file=sys.stderr)
        for line in range(300):
            for letter in f"{worker}{line}\\n":  # A system call each.
                os.write(1, letter.encode())
        """,
    )
    assert (status, sorted(err.splitlines())) == (0, ["[0] err", "[1] err", "[2] err"])
    for worker in range(3):
        own = [line for line in out if line.startswith(f"[{worker}]")]
        assert own == [f"[{worker}] {worker}{i}" for i in range(300)]


def test_when_one_fails_the_others_are_ended_and_its_last_lines_are_shown(launch):
    status, out, err = launch(
        3,
        """
        print("begun", flush=True)
        if worker == 1:
            wait_for(0, 2)
            for line in range(30):
                print("line", line)
            sys.exit(7)
        arrive()
        time.sleep(1000)
        """,
    )
    assert status == 7
    assert "[0] begun" in out
    head, *last = err.splitlines()
    assert re.fullmatch(r"worker 1 ended with status 7 after \d+\.\d s; its last lines:", head)
    assert last[:20] == [f"  line {line}" for line in range(10, 30)]
    assert [re.sub(r"\d+\.\d", "S", line) for line in last[20:]] == [
        "worker 0 was ended by SIGTERM after S s",
        "worker 2 was ended by SIGTERM after S s",
    ]


def test_others_may_say_what_they_saw_of_a_failure_and_who_takes_no_signal_is_ended_too(launch):
    status, out, err = launch(
        3,
        """
        if worker == 1:
            wait_for(0, 2)
            os.kill(os.getpid(), signal.SIGKILL)
        if worker == 2:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            arrive()
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(1000)
        signal.signal(signal.SIGTERM, lambda *_: (print("asked to end", flush=True), sys.exit(0)))
        arrive()
        while True:
            time.sleep(0.1)
        """,
        to_end=5,
    )
    assert status == 128 + signal.SIGKILL
    assert out == ["[0] asked to end"]
    assert "worker 2 was ended by SIGKILL" in err


def test_how_many_workers_are_there_is_told_until_all_are(launch, monkeypatch):
    monkeypatch.setenv("TENSORFLOW_IPU_PROGRESS", "1")
    status, out, err = launch(
        3,
        f"""
        {_PACKAGE}
        import socket
        socket.socket(fileno=environment.launcher()).send(str(worker).encode())
        """,
    )
    assert (status, out) == (0, [])
    assert re.fullmatch(r"workers that are there, 3 of 3, \d+ s\n", err)


# Its socket had a name by its process's number: two containers with one network could not both run, and any user could
# fill it.
def test_launcher_has_no_socket_that_other_processes_can_name(launch):
    status, out, _ = launch(
        1,
        f"""
        {_PACKAGE}
        import socket
        print([line for line in open("/proc/net/unix") if "tensorflow_ipu" in line])
        # A process that did not inherit the socket has another file, or none, of its number.
        number, other = environment.launcher(), socket.socket()
        os.dup2(other.fileno(), number)
        print(environment.launcher())
        os.close(number)
        print(environment.launcher())
        """,
    )
    assert (status, out) == (0, ["[0] []", "[0] None", "[0] None"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_handed_on(launch, number):
    status, out, _ = launch(
        2,
        f"""
        def caught(number, frame):
            print("caught", number, flush=True)
            sys.exit(1)
        signal.signal({int(number)}, caught)
        arrive()
        if worker == 1:
            wait_for(0)
            os.kill(os.getppid(), {int(number)})
        while True:
            time.sleep(0.1)
        """,
    )
    assert status == 128 + number
    assert sorted(out) == [f"[0] caught {int(number)}", f"[1] caught {int(number)}"]


def test_a_second_signal_ends_what_does_not_end(launch):
    status, out, _ = launch(
        1,
        """
        def caught(number, frame):
            print("not now", flush=True)
            os.kill(os.getppid(), signal.SIGINT)
        signal.signal(signal.SIGINT, caught)
        os.kill(os.getppid(), signal.SIGINT)
        while True:
            time.sleep(0.1)
        """,
    )
    assert (status, out) == (128 + signal.SIGINT, ["[0] not now"])


def test_nothing_that_a_process_started_runs_when_that_is_said():
    # They were sent a signal, and could be seen for a while after it: longer where they held much memory.
    held = "import time; held = bytearray(b'x') * (200 << 20); print(len(held), flush=True); time.sleep(1000)"
    code = f"""
        import subprocess, sys
        started = [subprocess.Popen([sys.executable, "-c", {held!r}], stdout=subprocess.PIPE) for _ in range(2)]
        for process in started:
            process.stdout.readline()
        print(*[process.pid for process in started], flush=True)
    """
    driver = f"""{_LAUNCHER}
launcher._TO_END = 120.0
launcher.Children()
child = launcher.Child(0, [sys.executable, "-c", {textwrap.dedent(code)!r}], os.environ)
numbers = child.process.stdout.readline().split()
os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT)
assert child.has_ended()
print(len(numbers), [os.path.exists(b"/proc/" + number) for number in numbers])
"""
    done = subprocess.run([sys.executable, "-c", driver], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout == "2 [False, False]\n"


def test_line_that_was_written_over_is_shown_as_it_ends():
    target, last = BytesIO(), deque[str](maxlen=2)
    lines = Lines("[0] ", target, last)
    lines.feed(b"1/3\r2/3\r3")
    assert target.getvalue() == b""
    lines.feed(b"/3\r\n\nrest")
    assert target.getvalue() == b"[0] 3/3\n[0] \n"
    lines.close()
    assert target.getvalue() == b"[0] 3/3\n[0] \n[0] rest\n"
    assert list(last) == ["", "rest"]


def test_hosts_are_told_what_to_run(here):
    status, out, _ = here("run", "--hosts", "a,b", "--instances=4", "--replicas", 8, "--port=9", "t.py", "--x", "a b")
    assert status == 0
    lines = out.splitlines()
    assert lines[::2] == [f"# worker {worker}, on {'aabb'[worker]}:" for worker in range(4)]
    for worker, line in enumerate(lines[1::2]):
        assert line.count(" python -m tensorflow_ipu run-script ") == 1
        command = line.replace(" python -m tensorflow_ipu run-script ", f' {sys.executable} -c "{_ECHO}" ')
        done = subprocess.run(["sh", "-c", command], capture_output=True, check=True)
        config, words, replicas = json.loads(done.stdout)
        assert json.loads(config) == {
            "cluster": {"worker": ["a:9", "a:10", "b:9", "b:10"]},
            "task": {"type": "worker", "index": worker},
        }
        assert words[1:] == ["t.py", "--x", "a b"]
        assert replicas == "2"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--instances", "0", "t.py"], "`0` is no number from 1 to 99999"),
        (["--instances", "2"], "name the script to run"),
        (["--instances", "2", "none.py"], "`none.py` does not exist; name a Python file"),
        (["--instances", "3", "--replicas", "4", __file__], "`--replicas=4` cannot be divided evenly among 3"),
        (["--instances", "2", "--timeout", "soon", __file__], "`soon` is no time"),
        (["--instances", "2", "--port", "70000", __file__], "`70000` is no port"),
        (["--hosts", "a,b", "--instances", "3", "t.py"], "`--instances=3` cannot be divided evenly among 2 hosts"),
        (["--hosts", "a:1,b", "t.py"], "`--hosts` has `a:1`, which is no host"),
        (["--hosts", "a,a", "t.py"], "`--hosts` names `a` twice"),
        (["--hosts", "a", "--instances", "2", "--port", "65535", "t.py"], "`--port=65535` leaves no room for 2 ports"),
    ],
)
def test_wrong_words_are_refused(here, words, message):
    status, out, err = here("run", *words)
    assert (status, out) == (2, "")
    assert message in err


def test_port_in_use_is_refused_and_ports_are_held_until_they_are_given_back(here):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        status, _, err = here("run", "--instances", 1, "--port", port, __file__)
    assert status == 2
    assert f"port {port}, for worker 0, cannot be used: address already in use; choose another `--port`" in err
    held = launcher.hold_ports(3, None)
    ports = {one.getsockname()[1] for one in held}
    assert len(ports) == 3
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((launcher.LOOPBACK, ports.pop()))
    for one in held:
        one.close()


def test_more_ipus_are_offered_where_the_replicas_need_them():
    variables = launcher.LaunchPlan(("a:1",), local_replicas=40, ipus_per_replica=2, timeout=5.0).variables(0, 64)
    del variables["TF_CONFIG"]
    assert variables == {
        "TENSORFLOW_IPU_REPLICAS": "40",
        "TENSORFLOW_IPU_IPUS_PER_REPLICA": "2",
        "TENSORFLOW_IPU_TIMEOUT": "5",
        "TENSORFLOW_IPU_COUNT": "80",
    }
    assert list(launcher.LaunchPlan(("a:1",)).variables(0, 64)) == ["TF_CONFIG"]


def test_help_is_there_and_loads_no_tensorflow(tmp_path):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tensorflow_ipu", "run", "--help"],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert "--instances" in done.stdout
    assert "Ctrl-C is handed on" in done.stdout
    assert not re.search(r"\| +tensorflow$", done.stderr, re.MULTILINE)
