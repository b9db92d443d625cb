"""Callbacks once per step and replica, called by a thread that reads the outfeed while the program runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._base.tensors import name_of
from tensorflow_ipu.feeds import IPUOutfeedQueue
from tensorflow_ipu.hosts import Cluster, exchange
from tensorflow_ipu.keras._keras import internals, keras

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorflow_ipu._base.types import Logs, Nested
    from tensorflow_ipu.strategy import IPUStrategyV1


class AsynchronousCallbacks(keras.callbacks.CallbackList):
    """A callback list that ignores the executions that Keras reports, and runs callbacks for each step by `report`."""

    def __init__(
        self,
        callbacks: keras.callbacks.CallbackList | keras.callbacks.Callback | Sequence[keras.callbacks.Callback] | None,
        per_step: int,
        **kwargs: Any,
    ) -> None:
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks = callbacks.callbacks
        super().__init__(callbacks, **kwargs)
        # Callbacks already run on the thread of `Reader`, so Keras must not start threads for them.
        self._async_train = self._async_test = self._async_predict = False
        self.per_step = per_step
        self._next = 0

    def report(self, mode: str, logs: Logs) -> None:
        """Runs the callbacks of one step of one replica."""
        index = self._next
        self._next += 1
        logs = internals.plain_logs(logs)
        for callback in self.callbacks:
            getattr(callback, f"on_{mode}_batch_begin")(index, logs={})
        for callback in self.callbacks:
            getattr(callback, f"on_{mode}_batch_end")(index, logs=logs)

    # Keras calls these once per execution. The first execution of an epoch resets the index of the step.

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Sets the index of the next step."""
        del logs
        self._next = batch * self.per_step

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Does nothing: `report` has run the callbacks."""

    on_test_batch_begin = on_predict_batch_begin = on_train_batch_begin
    on_test_batch_end = on_predict_batch_end = on_train_batch_end


class Reader:
    """A thread that passes each element of an outfeed to a function, until it has passed `count` elements."""

    def __init__(self, outfeed: IPUOutfeedQueue, count: int, handle: Callable[[Nested], None]) -> None:
        self._outfeed = outfeed
        self._remaining = count
        self._handle = handle
        self._is_given_up = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name="ipu-keras-callbacks", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _read(self) -> None:
        try:
            while self._remaining and not self._is_given_up.is_set():
                for element in self._outfeed:
                    self._remaining -= 1
                    self._handle(element)
        except BaseException as exc:  # `join` raises it on the thread that waits.
            self._error = exc

    def join(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error

    def give_up(self) -> None:
        """Ends the thread although elements are missing, after the program failed or the user interrupted it."""
        self._is_given_up.set()
        if self._thread.is_alive():  # Otherwise, `start` was interrupted or not called.
            self._thread.join()


_WRITING = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.TensorBoard,
)
_HOOKS = [name for name in vars(keras.callbacks.Callback) if name.startswith("on_")]


def written_once(callbacks: Nested, strategy: IPUStrategyV1) -> Nested:
    """Returns the callbacks of `fit`, with Keras's own callbacks that write files wrapped to write on worker 0 only."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks.callbacks = [_for_workers(callback, strategy) for callback in callbacks.callbacks]
        return callbacks
    if callbacks is None or isinstance(callbacks, keras.callbacks.Callback):
        return _for_workers(callbacks, strategy)
    return [_for_workers(callback, strategy) for callback in callbacks]


def _for_workers(callback: Any, strategy: IPUStrategyV1) -> Any:
    # A hook of the user may do more than write files, so it runs on all workers.
    if not isinstance(callback, _WRITING) or not all(_is_keras_hook(callback, name) for name in _HOOKS):
        return callback
    restores = isinstance(callback, keras.callbacks.BackupAndRestore)
    return (_Restoring if restores else _ChiefOnly)(callback, strategy)


def _is_keras_hook(callback: keras.callbacks.Callback, hook: str) -> bool:
    return getattr(type(callback), hook).__module__.startswith(f"{keras.__name__}.")


class _ChiefOnly(keras.callbacks.Callback):
    """A callback that forwards the calls of `fit` to another callback, on worker 0 only."""

    def __init__(self, callback: keras.callbacks.Callback, strategy: IPUStrategyV1) -> None:
        super().__init__()
        self.callback = callback
        self.extended = strategy.extended
        self.cluster: Cluster = strategy.extended.cluster

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        self.callback.set_params(params)

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        if self.cluster.is_chief:
            self.callback.set_model(model)


def _forwarding(hook: str) -> Callable[..., None]:
    def forward(self: _ChiefOnly, *args: Any, **kwargs: Any) -> None:
        if self.cluster.is_chief:
            with self.extended.alone():
                getattr(self.callback, hook)(*args, **kwargs)

    forward.__name__ = hook
    return forward


for _hook in _HOOKS:
    setattr(_ChiefOnly, _hook, _forwarding(_hook))


class _Restoring(_ChiefOnly):
    """A `BackupAndRestore` for several workers: all of them resume from what worker 0 finds in its folder."""

    def on_train_begin(self, logs: Any = None) -> None:
        model: Any = self.model
        if self.cluster.is_chief:
            with self.extended.alone():
                self.callback.on_train_begin(logs)
        epoch = internals.first_epoch(model)
        optimizer: Any = model.optimizer
        built = bool(optimizer) and getattr(optimizer, "built", True)
        status = tf.constant([-1 if epoch is None else epoch, built], tf.int64)
        agreed_status = exchange.collective(self.cluster, "broadcast", status, "the epoch to resume with")
        first_epoch, has_optimizer = agreed_status.numpy().tolist()
        if first_epoch < 0:
            return
        internals.set_first_epoch(model, first_epoch)
        if has_optimizer and not built:
            with self.extended.alone():
                internals.build_optimizer(optimizer, model.trainable_variables)
        variables = [*model.variables, *(internals.variables_of(optimizer) if has_optimizer else [])]
        for variable in variables:
            value, name = tf.convert_to_tensor(variable), name_of(variable)
            variable.assign(exchange.collective(self.cluster, "broadcast", value, f"what `{name}` resumes with"))
