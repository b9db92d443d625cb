"""Runs the examples as a user runs them."""

import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def source_of():
    """The path of an example, by its name."""
    return lambda name: EXAMPLES / f"{name}.py"


@pytest.fixture
def run_example(run_here, source_of):
    """`run_example(name, *arguments)` runs an example, and gives the lines that it prints."""
    return lambda name, *arguments: run_here(source_of(name), *arguments)


@pytest.fixture
def read_line():
    """`read_line(pattern, line)` gives what the groups of a pattern match, which has to match the whole line."""

    def read(pattern, line):
        found = re.fullmatch(pattern, line)
        assert found is not None, f"{line!r} is no {pattern!r}"
        return found.groups()

    return read
