"""The Keras of this process, which `tf.keras` resolves to, and `internals`, the adapter of its private API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorflow_ipu._base import environment

if TYPE_CHECKING or not environment.uses_keras_2():
    import keras

    from tensorflow_ipu.keras import _keras3 as internals
else:
    from tensorflow_ipu.keras import _version

    _version.check(_version.installed())
    import tf_keras as keras

    from tensorflow_ipu.keras import _keras2 as internals

__all__ = ["internals", "keras"]
