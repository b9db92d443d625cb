"""Settles once, when the package is imported, if `tf.keras` is Keras 2 or Keras 3 in this process."""

from __future__ import annotations

import functools
import logging
import os

import tensorflow as tf

from tensorflow_ipu._base import environment

_logger = logging.getLogger(__name__)

# TensorFlow reads `TF_USE_LEGACY_KERAS` at the first use of each of these modules.
_NAMES = ("keras", "initializers", "losses", "metrics", "optimizers")


def settle() -> bool:
    """Settles which Keras `tf.keras` is, and returns True if it is Keras 2. Uses only what is public.

    Without this, a library that sets `TF_USE_LEGACY_KERAS` later would mix modules of both versions in one process.
    """
    try:
        chosen = [getattr(tf, name).__name__ for name in _NAMES]
    except ImportError:  # Keras is not installed. The import of `keras/_keras.py` reports that.
        return environment.uses_keras_2()
    environment.settle_keras(chosen[0].startswith("tf_keras"))
    return environment.uses_keras_2()


def warn_of_late_change() -> None:
    """Logs a warning, once for each value, if `TF_USE_LEGACY_KERAS` was changed too late. Uses only what is public."""
    if environment.asks_for_keras_2(os.environ) != environment.uses_keras_2():
        _warn(os.environ.get(environment.KERAS_VARIABLE), environment.uses_keras_2())


@functools.cache
def _warn(value: str | None, is_2: bool) -> None:
    """Logs the warning; see `warn_of_late_change`."""
    _logger.warning(
        "`%s` was %s after Keras was imported, so this process stays with Keras %d. Set the variable before TensorFlow"
        " is imported",
        environment.KERAS_VARIABLE,
        "removed" if value is None else f"set to `{value}`",
        2 if is_2 else 3,
    )
