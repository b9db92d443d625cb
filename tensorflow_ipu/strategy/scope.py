"""A strategy's scope."""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType
from typing import Generic, NamedTuple, TypeVar

import tensorflow as tf

from tensorflow_ipu import _upcalls
from tensorflow_ipu.feeds import iterator

_Strategy = TypeVar("_Strategy", bound=tf.distribute.Strategy)


class _Entered(NamedTuple):
    scope: StrategyScope
    graph: tf.Graph
    exits: contextlib.ExitStack


class _Thread(threading.local):
    """The scopes that a thread has entered and not left."""

    def __init__(self) -> None:
        self.entered = _Stack()


class _Stack(list[_Entered]):
    """A stack that closes what is left when its thread ends."""

    def __del__(self) -> None:
        while self:
            with contextlib.suppress(Exception):  # What TensorFlow keeps of the thread may be gone.
                self.pop().exits.close()


_thread = _Thread()


class StrategyScope(Generic[_Strategy]):
    """A scope, which may be entered several times; a new one may leave what another one has entered."""

    def __init__(self, strategy: _Strategy, extended: bool) -> None:
        """Makes the scope of a strategy, with Keras extensions if `extended`."""
        self._strategy = strategy
        self._extended = extended
        self._was_entered = False

    def __enter__(self) -> _Strategy:
        with contextlib.ExitStack() as entered:
            entered.enter_context(tf.distribute.Strategy.scope(self._strategy))
            entered.enter_context(iterator.on_device())
            if self._extended:
                entered.enter_context(_upcalls.extending_models())
            _thread.entered.append(_Entered(self, tf.compat.v1.get_default_graph(), entered.pop_all()))
        self._was_entered = True
        return self._strategy

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        graph = self._innermost().graph
        exits = _thread.entered.pop().exits
        # TensorFlow keeps scopes in the default graph, and `keras.backend.clear_session()` makes another one.
        with contextlib.nullcontext() if graph is tf.compat.v1.get_default_graph() else graph.as_default():
            exits.__exit__(kind, error, traceback)

    def _innermost(self) -> _Entered:
        entered = _thread.entered
        mine = [self._leaves(each) for each in entered]
        if not any(mine):
            raise RuntimeError(
                "this scope was left before, or entered on another thread: leave each scope once, on the thread that entered it"
                if self._was_entered
                else "no scope of this strategy is entered on this thread, so none can be left: enter it by"
                " `with strategy.scope():`, or by `strategy.scope().__enter__()`"
            )
        if not mine[-1]:
            raise RuntimeError(
                "scopes are left in the wrong order: another scope was entered after this one, and is left first"
            )
        if entered[-1].graph is not tf.compat.v1.get_default_graph() and not tf.executing_eagerly():
            raise RuntimeError(
                "this scope was entered outside of the `tf.function` or graph in which it is left: leave it there"
            )
        return entered[-1]

    def _leaves(self, entered: _Entered) -> bool:
        return entered.scope is self if self._was_entered else entered.scope._strategy is self._strategy
