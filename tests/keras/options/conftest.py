"""What a model prints of its options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

GROUPS = ("gradient_accumulation", "pipelining", "infeed_queue", "outfeed_queue", "replication")


@pytest.fixture
def printed() -> Callable[[Any, str], str]:
    """`printed(model, group)` is what the model prints of a group of options, which it does by one call."""

    def text_of(model: Any, group: str) -> str:
        texts: list[str] = []
        assert getattr(model, f"print_{group}_options")(print_fn=texts.append) is None
        [text] = texts
        return text

    return text_of


@pytest.fixture
def all_printed(printed: Callable[[Any, str], str]) -> Callable[[Any], list[str]]:
    """`all_printed(model)` is that of all groups."""
    return lambda model: [printed(model, group) for group in GROUPS]
