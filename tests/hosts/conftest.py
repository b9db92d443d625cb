"""Sets of worker processes: two that serve many cases, and fresh ones for what breaks a cluster."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from processes import Workers


def _beside(name: str) -> Any:
    """A module of this folder, of which tests import nothing."""
    spec = importlib.util.spec_from_file_location(f"hosts_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_processes = _beside("processes")
_joining = _beside("joining")


@pytest.fixture(scope="session")
def _lasting(forking: Any) -> Iterator[dict[int, Workers]]:
    sets: dict[int, Workers] = {}
    yield sets
    for one in sets.values():
        one.close()


@pytest.fixture
def workers(forking: Any, _lasting: dict[int, Workers]) -> Workers:
    """Two workers that serve many tests. One that breaks them gets none of the others into trouble, but costs seconds."""
    return _set_of(2, forking, _lasting)


@pytest.fixture
def three_workers(forking: Any, _lasting: dict[int, Workers]) -> Workers:
    """Three of them."""
    return _set_of(3, forking, _lasting)


@pytest.fixture
def held_addresses() -> Iterator[Callable[[int], list[str]]]:
    """`held_addresses(3)` is so many of the loopback, on whose ports a test may listen, and nobody else does meanwhile."""
    with ExitStack() as stack:

        def hold(count: int) -> list[str]:
            held = [stack.enter_context(one) for one in _processes.reserve(count)]
            return [f"127.0.0.1:{one.getsockname()[1]}" for one in held]

        yield hold


@pytest.fixture
def fresh_workers(forking: Any) -> Iterator[Callable[..., Workers]]:
    """`fresh_workers(count, env=None, started=None)` starts workers for this test alone, which may break them."""
    with ExitStack() as stack:
        yield lambda count, **options: stack.enter_context(_processes.Workers(forking, count, **options))


@pytest.fixture
def joining() -> ModuleType:
    """Functions by which workers join, and wait: `workers.call(joining.wait_at_most, 1.0)`."""
    return _joining


def _set_of(count: int, forking: Any, sets: dict[int, Workers]) -> Workers:
    if count in sets and not sets[count].whole:
        sets.pop(count).close()
    if count not in sets:
        sets[count] = _processes.Workers(forking, count)
        sets[count].call(_joining.join)
    return sets[count]
