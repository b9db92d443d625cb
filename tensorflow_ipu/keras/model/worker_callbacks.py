"""Callbacks of Keras that write files, where several workers train a model: worker 0 alone writes, and all resume."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tensorflow_ipu.hosts import World, exchange
from tensorflow_ipu.keras import _keras_internals as internals

if TYPE_CHECKING:
    from tensorflow_ipu._types import Nested
    from tensorflow_ipu.strategy import IPUStrategyV1

_WRITING = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.TensorBoard,
)
_HOOKS = [name for name in vars(keras.callbacks.Callback) if name.startswith("on_")]


def written_once(callbacks: Nested, strategy: IPUStrategyV1) -> Nested:
    """The callbacks that `fit` is given, those of Keras that write files in a form that writes on worker 0 alone.

    Args:
      callbacks: A callback, a list of them, a `CallbackList`, or None.
      strategy: The strategy of the workers.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks.callbacks = [_of_workers(one, strategy) for one in callbacks.callbacks]
        return callbacks
    if callbacks is None or isinstance(callbacks, keras.callbacks.Callback):
        return _of_workers(callbacks, strategy)
    return [_of_workers(one, strategy) for one in callbacks]


def _of_workers(callback: Any, strategy: IPUStrategyV1) -> Any:
    # One whose hooks are the user's may do more than write.
    if not isinstance(callback, _WRITING) or not all(_is_of_keras(callback, name) for name in _HOOKS):
        return callback
    restores = isinstance(callback, keras.callbacks.BackupAndRestore)
    return (_Restoring if restores else _OnChief)(callback, strategy)


def _is_of_keras(callback: keras.callbacks.Callback, hook: str) -> bool:
    return getattr(type(callback), hook).__module__.startswith("keras.")


class _OnChief(keras.callbacks.Callback):
    """Hands what `fit` says on to a callback, on worker 0."""

    def __init__(self, callback: keras.callbacks.Callback, strategy: IPUStrategyV1) -> None:
        super().__init__()
        self.callback = callback
        self.extended = strategy.extended
        self.world: World = strategy.extended.world

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        self.callback.set_params(params)

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        if self.world.is_chief:
            self.callback.set_model(model)


def _handing_on(hook: str) -> Callable[..., None]:
    def hand_on(self: _OnChief, *args: Any, **kwargs: Any) -> None:
        if self.world.is_chief:
            with self.extended.alone():
                getattr(self.callback, hook)(*args, **kwargs)

    hand_on.__name__ = hook
    return hand_on


for _hook in _HOOKS:
    setattr(_OnChief, _hook, _handing_on(_hook))


class _Restoring(_OnChief):
    """`BackupAndRestore`: what worker 0 finds in its folder, all workers begin with."""

    def on_train_begin(self, logs: Any = None) -> None:
        model: Any = self.model
        if self.world.is_chief:
            with self.extended.alone():
                self.callback.on_train_begin(logs)
        epoch = internals.first_epoch(model)
        optimizer: Any = model.optimizer
        built = bool(optimizer) and optimizer.built
        own = tf.constant([-1 if epoch is None else epoch, built], tf.int64)
        found, has_optimizer = exchange.broadcast(self.world, own, "the epoch to resume with").numpy().tolist()
        if found < 0:
            return
        internals.begin_with_epoch(model, found)
        if has_optimizer and not built:
            with self.extended.alone():
                optimizer.build(model.trainable_variables)
        kept = [*model.variables, *(optimizer.variables if has_optimizer else [])]
        for variable in kept:
            variable.assign(exchange.broadcast(self.world, variable.value, f"what `{variable.path}` resumes with"))
