"""What tests of random programs share: how many they try, and the modules beside them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

sys.path.insert(0, str(Path(__file__).parent))

# `--hypothesis-profile=search` tries other examples than the same ones each time, and so many times as many.
_SEARCHED = 10


@pytest.fixture(scope="session")
def examples() -> Callable[[int], hypothesis.settings]:
    """`examples(n)` is the decorator of a check with `n` examples."""

    def settings(count: int) -> hypothesis.settings:
        searches = not hypothesis.settings.default.derandomize  # pyright: ignore[reportOptionalMemberAccess]
        return hypothesis.settings(max_examples=count * (_SEARCHED if searches else 1))

    return settings
