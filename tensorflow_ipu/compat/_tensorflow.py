"""What scripts ask of TensorFlow's classes in ways that they no longer take."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf
from tensorflow.python.keras.mixed_precision import loss_scale_optimizer
from tensorflow.python.ops import resource_variable_ops, variable_v1

from tensorflow_ipu import strategy
from tensorflow_ipu.compat._patches import Patches


def bridge(patches: Patches) -> None:
    """Makes TensorFlow take these; each is undone with `patches`."""
    # Variables on devices derived from `VariableV1` once, and had its methods.
    patches.put(
        resource_variable_ops.BaseResourceVariable,
        "initialized_value",
        vars(variable_v1.VariableV1)["initialized_value"],
    )
    name = "strategy_supports_loss_scaling"
    patches.put(loss_scale_optimizer, name, _supports_loss_scaling(getattr(loss_scale_optimizer, name)))


def _supports_loss_scaling(original: Callable[[], bool]) -> Callable[[], bool]:
    """`LossScaleOptimizer` of `tensorflow.python.keras` goes by a list of TensorFlow's own strategies."""

    def supports() -> bool:
        current = tf.distribute.get_strategy()
        return current.supports_loss_scaling if isinstance(current, strategy.IPUStrategy) else original()

    return supports
