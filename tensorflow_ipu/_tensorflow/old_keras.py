"""Keras 2 as included in TensorFlow, which scripts of IPU TensorFlow still import.

Uses the private `tensorflow.python.keras`. Without it: this module is not needed.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, MutableMapping
from typing import Any

import tensorflow as tf
from tensorflow.python.keras.optimizer_v2.optimizer_v2 import OptimizerV2

from tensorflow_ipu._base import environment

# The base class of this Keras's optimizers. Models of Keras 3 reject such optimizers.
Optimizer = OptimizerV2


def is_computing_shapes() -> bool:
    """Returns True while Keras calls a layer with symbols to compute shapes. Uses the private `in_symbolic_scope`."""
    if environment.uses_keras_2():
        return getattr(tf.compat.v1.get_default_graph(), "name", "") in ("keras_graph", "scratch_graph")
    # Programs without models need not import Keras, so this does not either. Without it: compare the graph's name with
    # `scratch_graph`.
    module = sys.modules.get("keras.src.backend.common.symbolic_scope")
    return module is not None and module.in_symbolic_scope()


def setting(optimizer: tf.compat.v1.train.Optimizer, name: str) -> Any:
    """Returns a hyperparameter as it was passed. Uses the private attribute of that name, such as `_learning_rate`."""
    # Without it: `compile` rejects these optimizers.
    return getattr(optimizer, f"_{name}")


def take_over_slots(
    optimizer: tf.compat.v1.train.Optimizer,
    slots: MutableMapping[tuple[Hashable, ...], tuple[Any, Any]],
    place: tuple[Hashable, ...],
) -> None:
    """Replaces an optimizer's slots by the entry of `slots` for its place and name; adds the entry if there is none.

    Uses the private `Optimizer._slots`, `_non_slot_dict` and `_name`.
    """
    # The public `get_slot` and `variables` only read. Without it: the optimizer of a pipeline must be created outside
    # of the pipeline.
    shared = slots.setdefault((*place, optimizer._name), (optimizer._slots, optimizer._non_slot_dict))
    optimizer._slots, optimizer._non_slot_dict = shared


def keras_2_optimizers() -> list[type]:
    """Returns the base classes of Keras 2 optimizers of TensorFlow and `tf_keras`.

    Uses the private names of modules.
    """
    # Their import takes a while. A process that has such an optimizer has already imported its module.
    names = {
        "tensorflow.python.keras.optimizer_v2.optimizer_v2": "OptimizerV2",
        "tf_keras.src.optimizers.legacy.optimizer_v2": "OptimizerV2",
        "tf_keras.src.optimizers.optimizer": "Optimizer",
    }
    return [getattr(sys.modules[module], name) for module, name in names.items() if module in sys.modules]
