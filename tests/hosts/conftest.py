"""Two sets of worker processes, which serve many cases."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from processes import Workers


# By its path: tests import nothing of each other.
_spec = importlib.util.spec_from_file_location("hosts_processes", Path(__file__).with_name("processes.py"))
assert _spec is not None
assert _spec.loader is not None
_processes = sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_processes)


@pytest.fixture(scope="session")
def _lasting() -> Iterator[dict[int, Workers]]:
    sets: dict[int, Workers] = {}
    yield sets
    for one in sets.values():
        one.close()


@pytest.fixture
def workers(quick_imports: dict[str, str], _lasting: dict[int, Workers]) -> Workers:
    """Two workers that serve many tests. One that breaks them gets none of the others into trouble, but costs seconds."""
    return _set_of(2, quick_imports, _lasting)


@pytest.fixture
def three_workers(quick_imports: dict[str, str], _lasting: dict[int, Workers]) -> Workers:
    """Three of them."""
    return _set_of(3, quick_imports, _lasting)


def _set_of(count: int, env: dict[str, str], sets: dict[int, Workers]) -> Workers:
    if count in sets and not sets[count].whole:
        sets.pop(count).close()
    if count not in sets:
        sets[count] = _processes.Workers(count, env)
    return sets[count]
