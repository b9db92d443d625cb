"""The Keras 2 that is left in TensorFlow, which scripts of IPU TensorFlow still import.

Stands on `tensorflow.python.keras`, which has no public name. When it is gone, so is all that is here.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, MutableMapping
from typing import Any

import tensorflow as tf
from tensorflow.python.keras.optimizer_v2.optimizer_v2 import OptimizerV2

from tensorflow_ipu._base import environment

# The base class of its optimizers, which no model of Keras 3 takes.
Optimizer = OptimizerV2


def are_asked_for() -> bool:
    """Returns True if Keras calls a layer or model with symbols, for shapes alone; stands on `in_symbolic_scope`."""
    if environment.uses_keras_2():
        return getattr(tf.compat.v1.get_default_graph(), "name", "") in ("keras_graph", "scratch_graph")
    # Looked up where Keras is imported already: a program without models need not have it. Without it: the graph's name
    # `scratch_graph`.
    module = sys.modules.get("keras.src.backend.common.symbolic_scope")
    return module is not None and module.in_symbolic_scope()


def setting(optimizer: tf.compat.v1.train.Optimizer, name: str) -> Any:
    """A hyperparameter as it was passed; stands on the attribute of that name after `_`."""
    # Without it: `compile` refuses such optimizers.
    return getattr(optimizer, f"_{name}")


def take_over_slots(
    optimizer: tf.compat.v1.train.Optimizer,
    kept: MutableMapping[tuple[Hashable, ...], tuple[Any, Any]],
    place: tuple[Hashable, ...],
) -> None:
    """Gives an optimizer the slots kept for its place and name, if any; stands on `Optimizer._slots` and `_name`."""
    # `get_slot` and `variables` only read. Without it: an optimizer of a pipeline has to be made once, outside of it.
    known = kept.setdefault((*place, optimizer._name), (optimizer._slots, optimizer._non_slot_dict))
    optimizer._slots, optimizer._non_slot_dict = known


def keras_2_optimizers() -> list[type]:
    """The base classes of optimizers of Keras 2, TensorFlow's own and `tf_keras`; stands on the names of their modules."""
    # To import them takes a while, and who has such an optimizer has done so.
    names = {
        "tensorflow.python.keras.optimizer_v2.optimizer_v2": "OptimizerV2",
        "tf_keras.src.optimizers.legacy.optimizer_v2": "OptimizerV2",
        "tf_keras.src.optimizers.optimizer": "Optimizer",
    }
    return [getattr(sys.modules[module], name) for module, name in names.items() if module in sys.modules]
