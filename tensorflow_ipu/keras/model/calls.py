"""The calls of a model's methods: each has its own state, and its turns to use the model."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._base.fair_lock import FairLock
from tensorflow_ipu.keras._keras import internals, keras
from tensorflow_ipu.ops.replica_variables import read_all, write_all

if TYPE_CHECKING:
    from tensorflow_ipu.keras.model.callbacks import AsynchronousCallbacks


class Call:
    """A call of `fit` or the like, with what belongs to it alone."""

    def __init__(self, method: str, outer: Call | None, version: int) -> None:
        """Begins a call, by a callback of the `outer` one if there is one."""
        self.method = method
        self.outermost = outer.outermost if outer else self
        self.version = version  # Of the model's programs, as the call began.
        self.callbacks: AsynchronousCallbacks | None = None
        self.replicas = 1  # As many as the latest execution had.
        # The variables of metrics with the values of all replicas, while another call uses them.
        self.metrics: list[tuple[Any, list[tf.Tensor]]] = []
        self.has_ended = False


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
        self._thread = threading.local()
        self._under_way: set[Call] = set()  # Changed by one operation each, without a lock.
        self._measured: Call | None = None  # The call whose values the metrics have: guarded by `_turns`.

    @property
    def current(self) -> Call | None:
        """The innermost call of this thread."""
        return getattr(self._thread, "call", None)

    @property
    def are_under_way(self) -> bool:
        """Whether any thread is in a call."""
        return bool(self._under_way)

    @contextlib.contextmanager
    def call(self, method: str, version: int) -> Iterator[Call]:
        """Begins a call, which ends with the block."""
        outer = self.current
        call = Call(method, outer, version)
        self._under_way.add(call)
        self._thread.call = call
        try:
            yield call
        finally:
            self._thread.call = outer
            self._under_way.discard(call)
            call.has_ended = True
            if outer is None:
                self._turns.release_all()
                self._fits.release_all()

    def fitting(self) -> contextlib.AbstractContextManager[None]:
        """Returns a block that one thread at a time is in: Keras keeps the state of a `fit` in the model."""
        return self._fits

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Waits for this thread's turn, which is the block."""
        with self._turns:
            yield

    @contextlib.contextmanager
    def measuring(self, replicas: int = 1) -> Iterator[None]:
        """A turn in which metrics have the values of this thread's call, of so many replicas."""
        with self._turns:
            call = self.current and self.current.outermost
            if call is not self._measured:
                self._exchange_metrics(call)
            if call is not None:
                call.replicas = replicas
            yield

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
