"""The example of many hosts gives the same in one process and in two, which the launcher starts."""

from __future__ import annotations

import subprocess
import sys


def test_two_processes_learn_what_one_learns(run_example, source_of, read_line, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tensorflow_ipu", "run", "--instances", "2", "--replicas", "4", source_of("many_hosts")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    pattern = r"(?:\[(\d)\] )?worker (\d) of (\d), 4 replicas: loss (\S+), sum of weights (\S+)"
    [line] = run_example("many_hosts")
    *_, alone_loss, alone_sum = read_line(pattern, line)
    lines = [read_line(pattern, line) for line in sorted(done.stdout.splitlines())]
    assert [line[:3] for line in lines] == [("0", "0", "2"), ("1", "1", "2")]
    for *_, loss, total in lines:
        assert abs(float(loss) - float(alone_loss)) < 0.001
        assert abs(float(total) - float(alone_sum)) < 0.1
