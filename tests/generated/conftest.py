"""A fixture for the number of examples of random programs. Also makes the modules of this folder importable."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

sys.path.insert(0, str(Path(__file__).parent))

# `--hypothesis-profile=search` tries new examples instead of the same ones, and this many times as many.
_SEARCHED = 10


@pytest.fixture(scope="session")
def examples() -> Callable[[int], hypothesis.settings]:
    """`examples(n)` returns the decorator of a check with `n` examples."""

    def settings(count: int) -> hypothesis.settings:
        searches = not hypothesis.settings.default.derandomize  # pyright: ignore[reportOptionalMemberAccess]
        return hypothesis.settings(max_examples=count * (_SEARCHED if searches else 1))

    return settings
