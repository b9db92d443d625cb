"""Callbacks once a step and replica, called by a thread that reads the outfeed while the program runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from keras.callbacks import CallbackList

from tensorflow_ipu.feeds import IPUOutfeedQueue

if TYPE_CHECKING:
    from collections.abc import Sequence

    import keras

    from tensorflow_ipu._types import Logs, Nested


class AsynchronousCallbacks(CallbackList):
    """Callbacks that do not hear of executions, which is what Keras knows of, but of their steps, by `report`.

    Attributes:
      per_step: How many reports a step makes: one a replica.
    """

    def __init__(
        self,
        callbacks: keras.callbacks.CallbackList | keras.callbacks.Callback | Sequence[keras.callbacks.Callback] | None,
        per_step: int,
        **kwargs: Any,
    ) -> None:
        """Takes the user's callbacks.

        Args:
          callbacks: A callback, a list of them, a `CallbackList`, or None.
          per_step: How many replicas run.
          **kwargs: As `CallbackList` takes them.
        """
        if isinstance(callbacks, CallbackList):
            callbacks = callbacks.callbacks
        super().__init__(callbacks, **kwargs)
        # They are called by the thread already.
        self._async_train = self._async_test = self._async_predict = False
        self.per_step = per_step
        self._next = 0

    def report(self, mode: str, logs: Logs) -> None:
        """Tells all callbacks that a step of one replica has ended.

        Args:
          mode: `"train"`, `"test"` or `"predict"`.
          logs: What the step returned.
        """
        index = self._next
        self._next += 1
        for callback in self.callbacks:
            getattr(callback, f"on_{mode}_batch_begin")(index, logs={})
        getattr(self, f"_on_{mode}_batch_end")(index, logs)

    # What Keras says of executions. The first of them says where an epoch begins.

    def _begin(self, batch: int) -> None:
        self._next = batch * self.per_step

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Notes which step comes next."""
        del logs
        self._begin(batch)

    def on_test_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Notes which step comes next."""
        del logs
        self._begin(batch)

    def on_predict_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Notes which step comes next."""
        del logs
        self._begin(batch)

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Does nothing: the steps were reported."""

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Does nothing: the steps were reported."""

    def on_predict_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Does nothing: the steps were reported."""


class Reader:
    """A thread that hands each element of an outfeed to a function, until it has handed on so many."""

    def __init__(self, outfeed: IPUOutfeedQueue, count: int, handle: Callable[[Nested], None]) -> None:
        """Starts to read.

        Args:
          outfeed: The queue.
          count: How many elements a run of the program makes.
          handle: Called with each element.
        """
        self._outfeed = outfeed
        self._left = count
        self._handle = handle
        self._given_up = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name="ipu-keras-callbacks", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while self._left and not self._given_up.is_set():
                for element in self._outfeed:
                    self._left -= 1
                    self._handle(element)
        except BaseException as exc:  # For the thread that waits.
            self._error = exc

    def join(self) -> None:
        """Waits until all elements were handled.

        Raises:
          BaseException: What `handle` raised.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error

    def give_up(self) -> None:
        """Ends the thread though elements are missing: the program failed."""
        self._given_up.set()
        self._thread.join()
