"""What scripts ask of TensorFlow's classes in ways that they no longer take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tensorflow_ipu import strategy
from tensorflow_ipu._tensorflow import patches, variables
from tensorflow_ipu._tensorflow.patches import Changes


def bridge(changes: Changes) -> None:
    """Makes TensorFlow take these; each is undone with `changes`."""
    # Variables on devices derived from `VariableV1` once, and had its methods.
    old: Any = tf.compat.v1.Variable
    changes.put(variables.ResourceVariable, "initialized_value", vars(old)["initialized_value"])
    changes.apply(patches.OLD_LOSS_SCALING)


def _supports_loss_scaling(original: Callable[[], bool]) -> Callable[[], bool]:
    """`LossScaleOptimizer` of `tensorflow.python.keras` goes by a list of TensorFlow's own strategies."""

    def supports() -> bool:
        current = tf.distribute.get_strategy()
        return current.supports_loss_scaling if isinstance(current, strategy.IPUStrategy) else original()

    return supports


patches.OLD_LOSS_SCALING.by(_supports_loss_scaling)
