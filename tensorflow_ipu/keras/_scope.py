"""Gives the models that are made in a strategy's scope what IPU models have, and no others."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tensorflow_ipu import strategy as strategies
from tensorflow_ipu.keras._auto import look_past_ipus
from tensorflow_ipu.keras._seeds import seed_by_replica

_lock = threading.Lock()
_scopes = 0
_plain_init: Callable[..., None] | None = None


@contextlib.contextmanager
def extending_models() -> Iterator[None]:
    """Has models be extended as they are made under an IPU strategy, for as long as any block of this lasts.

    Keras offers no hook, so the initializer of its models is replaced, and put back with the end of the last block. It
    asks for the strategy of its thread: models that are made under none, or another one, get what they always get.
    """
    global _scopes, _plain_init  # noqa: PLW0603
    import keras  # Not before a scope wants it. TensorFlow has imported it by now, at least in the versions that we know.

    look_past_ipus()
    seed_by_replica()

    with _lock:
        if _scopes == 0:
            _plain_init = keras.Model.__init__
            keras.Model.__init__ = _extending(_plain_init)
        _scopes += 1
    try:
        yield
    finally:
        with _lock:
            _scopes -= 1
            if _scopes == 0:
                assert _plain_init is not None
                keras.Model.__init__ = _plain_init


def _extending(plain: Callable[..., None]) -> Callable[..., None]:
    from tensorflow_ipu.keras._extension import extend

    @functools.wraps(plain)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        plain(self, *args, **kwargs)
        strategy = tf.distribute.get_strategy()
        if isinstance(strategy, strategies.IPUStrategyV1) and strategy._enable_keras_extensions:
            extend(self, strategy)

    return __init__


strategies.extend_scope(extending_models)
