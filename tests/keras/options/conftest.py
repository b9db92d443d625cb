"""Fixtures of the tests of a model's options: a small model in a scope, and its printed options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

GROUPS = ("gradient_accumulation", "pipelining", "infeed_queue", "outfeed_queue", "replication")


@pytest.fixture
def make_tiny(scoped: Callable[[Callable[[], Any]], Any]) -> Callable[[], Any]:
    """Returns a function that makes a model of one layer in a strategy's scope."""

    def make() -> Any:
        keras.utils.set_random_seed(1)
        return keras.Sequential([keras.Input([6]), keras.layers.Dense(3)], name="tiny")

    return lambda: scoped(make)


@pytest.fixture
def tiny(make_tiny: Callable[[], Any]) -> Any:
    return make_tiny()


@pytest.fixture
def set_all() -> Callable[[Any], None]:
    """Returns a function that sets options of all groups of a model."""

    def set_them(model: Any) -> None:
        model.set_gradient_accumulation_options(3, "mean", dtype=tf.float32)
        model.set_pipelining_options(4, [1, 0], True, "mean", offload_activations=True)
        model.set_infeed_queue_options(prefetch_depth=7)
        model.set_outfeed_queue_options(buffer_depth=2)
        model.set_replication_options("LIST")

    return set_them


@pytest.fixture
def printed() -> Callable[[Any, str], str]:
    """Returns a function that returns the text that a model prints for a group, in one call: `printed(model, group)`."""

    def text_of(model: Any, group: str) -> str:
        texts: list[str] = []
        assert getattr(model, f"print_{group}_options")(print_fn=texts.append) is None
        [text] = texts
        return text

    return text_of


@pytest.fixture
def all_printed(printed: Callable[[Any, str], str]) -> Callable[[Any], dict[str, str]]:
    """Returns a function that returns the printed texts of all groups, by group: `all_printed(model)`."""
    return lambda model: {group: printed(model, group) for group in GROUPS}
