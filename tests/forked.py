"""Runs scripts in separate processes, which are forked from one interpreter that has imported TensorFlow."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import pytest

_INTERPRETER = Path(__file__).with_name("forking.py")


class Forking:
    """The process of `forking.py`, which starts with the first script."""

    def __init__(self, more: Mapping[str, str]) -> None:
        self._environment = {**os.environ, **more, "PYTHONUNBUFFERED": "1"}
        self._process: subprocess.Popen[str] | None = None

    def run(
        self, script: Path, *arguments: str, timeout: float, env: Mapping[str, str | None] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a script in a new process, in the folder `empty` next to it; the result is that of `subprocess.run`."""
        folder, stdout, stderr = (script.with_name(name) for name in ("empty", "stdout", "stderr"))
        folder.mkdir(exist_ok=True)
        command = [str(script), *arguments]
        process = self._fork(command, folder, stdout, stderr, env)
        in_time = bool(select.select([self._answers], [], [], timeout)[0])
        if not in_time:
            os.kill(process, signal.SIGKILL)
        code = int(self._answers.readline())
        printed = [file.read_text(errors="replace") for file in (stdout, stderr)]
        if not in_time:
            pytest.fail("\n".join([f"the script was not done after {timeout} s; it printed:", *printed]))
        return subprocess.CompletedProcess(command, code, *printed)

    def start(
        self, script: Path, *arguments: str, folder: Path, output: Path, env: Mapping[str, str | None] | None = None
    ) -> int:
        """Starts a script in a new process without waiting, and returns the process id for `end`."""
        return self._fork([str(script), *arguments], folder, output, output, env, in_background=True)

    def end(self, process: int) -> int:
        """Waits for a process of `start`, and returns its exit code, or minus the signal that ended it."""
        print(process, file=self._requests, flush=True)
        return int(self._answers.readline())

    def _fork(
        self,
        command: list[str],
        folder: Path,
        stdout: Path,
        stderr: Path,
        env: Mapping[str, str | None] | None,
        in_background: bool = False,
    ) -> int:
        variables = {**os.environ, "PYTHONPATH": self._environment["PYTHONPATH"], **(env or {})}
        request = {
            "arguments": command,
            "environment": {name: value for name, value in variables.items() if value is not None},
            "folder": str(folder),
            "stdout": str(stdout),
            "stderr": str(stderr),
            "in_background": in_background,
        }
        print(json.dumps(request), file=self._requests, flush=True)
        return int(self._answers.readline())

    @property
    def number(self) -> int:
        """The process id of the interpreter, the parent of all scripts. The first access starts it."""
        return self._interpreter.pid

    @property
    def _interpreter(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, str(_INTERPRETER)],
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        return self._process

    @property
    def _requests(self) -> IO[str]:
        assert self._interpreter.stdin is not None
        return self._interpreter.stdin

    @property
    def _answers(self) -> IO[str]:
        assert self._interpreter.stdout is not None
        return self._interpreter.stdout

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()
