"""The scope of a strategy: TensorFlow's own, in which `iter(dataset)` feeds programs, and what upper layers add."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

import tensorflow as tf

from tensorflow_ipu.feeds import dataset_iteration

_Strategy = TypeVar("_Strategy", bound=tf.distribute.Strategy)

_extensions: list[Callable[[], contextlib.AbstractContextManager[object]]] = []


def extend_scope(extension: Callable[[], contextlib.AbstractContextManager[object]]) -> None:
    """Has each scope of a strategy with Keras extensions hold what `extension()` gives, for as long as the scope lasts.

    Args:
      extension: Gives a context manager. It is called with the strategy in force already.
    """
    _extensions.append(extension)


class StrategyScope(Generic[_Strategy]):
    """A scope, which may be entered several times, one in the other."""

    def __init__(self, strategy: _Strategy, extended: bool) -> None:
        """Makes the scope of a strategy; `extended`: with what `extend_scope` was told."""
        self._strategy = strategy
        self._extended = extended
        self._entered: list[contextlib.ExitStack] = []

    def __enter__(self) -> _Strategy:
        with contextlib.ExitStack() as entered:
            entered.enter_context(tf.distribute.Strategy.scope(self._strategy))
            entered.enter_context(dataset_iteration.on_device())
            if self._extended:
                for extension in _extensions:
                    entered.enter_context(extension())
            self._entered.append(entered.pop_all())
        return self._strategy

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._entered.pop().__exit__(kind, error, traceback)
