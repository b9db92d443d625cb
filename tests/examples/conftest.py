"""Fixtures that run the examples as a user does."""

import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def source_of():
    """`source_of(name)` returns the path of an example."""
    return lambda name: EXAMPLES / f"{name}.py"


@pytest.fixture
def run_example(run_here, source_of):
    """`run_example(name, *arguments)` runs an example and returns the lines that it prints."""
    return lambda name, *arguments: run_here(source_of(name), *arguments)


@pytest.fixture
def read_line():
    """`read_line(pattern, line)` returns the groups of a pattern that must match the whole line."""

    def read(pattern, line):
        match = re.fullmatch(pattern, line)
        assert match is not None, f"{line!r} does not match {pattern!r}"
        return match.groups()

    return read
