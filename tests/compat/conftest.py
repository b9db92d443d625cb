"""The command, and the door open for one test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tensorflow_ipu import compat

SCRIPTS = Path(__file__).parent / "scripts"

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def door() -> Iterator[None]:
    """Opens the door for the test."""
    compat.install()
    yield
    compat.uninstall()


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Runs `python -m tensorflow_ipu` with these words in an empty folder: `command(*words, timeout=300)`."""

    def run(*words: str | Path, timeout: float = 100) -> subprocess.CompletedProcess[str]:
        folder = tmp_path / "empty"
        folder.mkdir(exist_ok=True)
        return subprocess.run(
            [sys.executable, "-m", "tensorflow_ipu", *map(str, words)],
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture
def script_output(command: Command) -> Callable[[str], list[str]]:
    """Runs one of the scripts beside this file and gives the lines that it printed; one that fails fails the test."""

    def run(name: str) -> list[str]:
        done = command(SCRIPTS / name)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout.splitlines()

    return run
