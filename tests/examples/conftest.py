"""Runs the examples as a user runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def source_of():
    """The path of an example, by its name."""
    return lambda name: EXAMPLES / f"{name}.py"


@pytest.fixture
def run_example(run_script, source_of):
    """Runs an example in a process of its own; returns the lines that it prints."""

    def run(name, *arguments, timeout=100):
        return run_script(source_of(name).read_text(), *arguments, timeout=timeout).stdout.splitlines()

    return run
