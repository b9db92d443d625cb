"""Gives the models that are made in a strategy's scope what IPU models have, and no others."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import strategy as strategies
from tensorflow_ipu._tensorflow import patches
from tensorflow_ipu.keras.model._seeds import seed_by_replica
from tensorflow_ipu.keras.model._shared_statistics import share_statistics
from tensorflow_ipu.keras.model.auto import look_past_ipus

if TYPE_CHECKING:
    import keras


@contextlib.contextmanager
def extending_models() -> Iterator[None]:
    """Has models be extended as they are made under an IPU strategy, for as long as any block of this lasts.

    The patched initializer asks for the current strategy of its thread: models that are made under none, or under another
    one, are not extended.
    """
    look_past_ipus()
    seed_by_replica()
    share_statistics()
    with patches.KERAS_MODELS.applied():
        yield


def _extending(plain: Callable[..., None]) -> Callable[..., None]:
    from tensorflow_ipu.keras.model.extension import extend

    @functools.wraps(plain)
    def __init__(self: keras.Model, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        plain(self, *args, **kwargs)
        strategy = tf.distribute.get_strategy()
        if isinstance(strategy, strategies.IPUStrategyV1) and strategy._enable_keras_extensions:
            extend(self, strategy)

    return __init__


patches.KERAS_MODELS.by(_extending)
