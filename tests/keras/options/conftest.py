"""What the tests of a model's options share: a small model in a scope, and what a model prints of its options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

GROUPS = ("gradient_accumulation", "pipelining", "infeed_queue", "outfeed_queue", "replication")


@pytest.fixture
def make_tiny(scoped: Callable[[Callable[[], Any]], Any]) -> Callable[[], Any]:
    """`make_tiny()` makes a model of one layer in a strategy's scope."""

    def make() -> Any:
        keras.utils.set_random_seed(1)
        return keras.Sequential([keras.Input([6]), keras.layers.Dense(3)], name="tiny")

    return lambda: scoped(make)


@pytest.fixture
def tiny(make_tiny: Callable[[], Any]) -> Any:
    return make_tiny()


@pytest.fixture
def set_all() -> Callable[[Any], None]:
    """`set_all(model)` sets options of all groups."""

    def set_them(model: Any) -> None:
        model.set_gradient_accumulation_options(3, "mean", dtype=tf.float32)
        model.set_pipelining_options(4, [1, 0], True, "mean", offload_activations=True)
        model.set_infeed_queue_options(prefetch_depth=7)
        model.set_outfeed_queue_options(buffer_depth=2)
        model.set_replication_options("LIST")

    return set_them


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
def all_printed(printed: Callable[[Any, str], str]) -> Callable[[Any], dict[str, str]]:
    """`all_printed(model)` is that of all groups."""
    return lambda model: {group: printed(model, group) for group in GROUPS}
