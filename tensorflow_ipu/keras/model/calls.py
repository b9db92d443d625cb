"""The calls of a model's methods: each has its own state, and its turns to use the model."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._base.fair_lock import FairLock
from tensorflow_ipu.keras._keras import internals, keras
from tensorflow_ipu.ops.replica_variables import read_all, write_all

if TYPE_CHECKING:
    from typing_extensions import Self

    from tensorflow_ipu.keras.model.callbacks import AsynchronousCallbacks


class Call:
    """A call of `fit` or the like, with what belongs to it alone: a block of `with`."""

    def __init__(self, calls: Calls, method: str, version: int) -> None:
        """Describes a call of a method of the model."""
        self._calls = calls
        self._outer: Call | None = None  # The call whose callback made this one, on the same thread.
        self.method = method
        self.version = version  # Of the model's programs, as the call began.
        self.outermost = self
        self.callbacks: AsynchronousCallbacks | None = None
        self.replicas = 1  # As many as the latest execution had.
        # The variables of metrics with the values of all replicas, while another call uses them.
        self.metrics: list[tuple[Any, list[tf.Tensor]]] = []
        self.has_ended = False

    def __enter__(self) -> Self:
        calls = self._calls
        self._outer = calls.current
        if self._outer is not None:
            self.outermost = self._outer.outermost
        calls.under_way.add(self)
        calls.thread.call = self
        return self

    def __exit__(self, *exc_info: object) -> None:
        calls = self._calls
        calls.thread.call = self._outer
        calls.under_way.discard(self)
        self.has_ended = True
        if self._outer is None:
            calls.release()


class Calls:
    """The calls of one model's methods, by any threads.

    A turn is a thread's use of the model: an execution, a trace, or a change of the model. Threads get their turns in the
    order in which they ask. Calls take turns, so that one predicts while another trains. The variables of metrics have the
    values of one call; a call that finds those of another exchanges them.
    """

    def __init__(self, model: keras.Model) -> None:
        """Begins without a call."""
        self._model = model
        self._turns = FairLock()
        self._fits = FairLock()
        self._measured: Call | None = None  # The call whose values the metrics have: guarded by `_turns`.
        self.thread = threading.local()
        self.under_way: set[Call] = set()  # Changed by one operation each, without a lock.

    @property
    def current(self) -> Call | None:
        """The innermost call of this thread."""
        return getattr(self.thread, "call", None)

    def release(self) -> None:
        """Ends the turns of this thread, which an exception of a signal handler may have kept from their end."""
        self._turns.release_all()
        self._fits.release_all()

    def fitting(self) -> contextlib.AbstractContextManager[None]:
        """Returns a block that one thread at a time is in: Keras keeps the state of a `fit` in the model."""
        return self._fits

    def turn(self) -> contextlib.AbstractContextManager[None]:
        """Returns a block that begins when it is this thread's turn, which ends with it."""
        return self._turns

    def measure(self, replicas: int = 1) -> None:
        """Gives metrics the values of this thread's call, whose executions have so many replicas; in a turn."""
        call = self.current and self.current.outermost
        if call is not self._measured:
            self._exchange_metrics(call)
        if call is not None:
            call.replicas = replicas

    def _exchange_metrics(self, call: Call | None) -> None:
        before = self._measured
        if before is not None and not before.has_ended:
            variables = internals.variables_of_metrics(self._model)
            before.metrics = [(variable, read_all(variable, before.replicas)) for variable in variables]
        self._measured = call
        if call is not None:
            for variable, values in call.metrics:
                write_all(variable, values)
            call.metrics = []
